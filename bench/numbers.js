// How figures are written: three digits that count, thousands set apart.

export function number(value) {
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString('en-US');
  if (size === 0) return '0';
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Number(size.toPrecision(3)))));
  return value.toFixed(Math.min(digits, 6));
}

const UNITS = { us: 'µs', '1/s': 'per second', s: 's', ms: 'ms', '%': '%' };

/** As the documentation has it. */
export function unitName(unit) {
  return UNITS[unit] ?? unit;
}

/** 252 -> '4 min 12 s' */
export function duration(seconds) {
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** A ratio: with two digits after the point, as long as they matter. */
export function times(factor) {
  return factor < 100 ? factor.toFixed(factor < 0.1 ? 3 : 2) : number(factor);
}
