// Where an axis has its marks. A tick without label is only a fine line.
import { number } from './numbers.js';

const STEPS = [1, 2, 2.5, 5, 10];

/** About five round values that enclose the interval. */
export function linearTicks(from, to) {
  const span = to - from || 1;
  const rough = span / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * STEPS.find((each) => each * power >= rough * 0.999);
  const first = Math.floor(from / step);
  const last = Math.ceil(to / step - 1e-9);
  const ticks = [];
  for (let i = first; i <= Math.max(last, first + 1); i++)
    ticks.push({ value: i * step, label: short(i * step) });
  return { low: ticks[0].value, high: ticks.at(-1).value, ticks };
}

/** Powers of ten; where they are few, twice and five times those as well. Ends are the nearest of these. */
export function logTicks(from, to) {
  const candidates = [];
  for (let power = Math.floor(Math.log10(from)) - 1; power <= Math.ceil(Math.log10(to)) + 1; power++) {
    for (const times of [1, 2, 5])
      candidates.push({ value: Number(`${times}e${power}`), whole: times === 1 });
  }
  const low = candidates.filter(({ value }) => value <= from * 0.95).at(-1).value;
  const high = candidates.find(({ value }) => value >= to * 1.05).value;
  const within = candidates.filter(({ value }) => value >= low && value <= high);
  const all = within.length <= 8;
  const ticks = within.map(({ value, whole }) => ({ value, label: whole || all ? short(value) : '' }));
  return { low, high, ticks };
}

const short = (value) =>
  Number.isInteger(value) ? value.toLocaleString('en-US') : String(Number(number(value).replaceAll(',', '')));
