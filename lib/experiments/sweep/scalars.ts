import { type Value, Written } from '../task/index.ts';

/**
 * Scalars as YAML 1.1 has them, and PyYAML reads them: `yes`, `010` (octal), `1:30` (base 60), `1_000`. A number with an exponent
 * needs a dot and the exponent's sign: `5e-4` is a string.
 */
const NULL = /^(?:~|null|Null|NULL)$/;
const TRUE = /^(?:yes|Yes|YES|true|True|TRUE|on|On|ON)$/;
const FALSE = /^(?:no|No|NO|false|False|FALSE|off|Off|OFF)$/;
const INTEGER =
  /^([-+]?)(?:0b([01_]+)|0x([\da-fA-F_]+)|0(_*[0-7][0-7_]*)|(0_*|[1-9][\d_]*)|([1-9][\d_]*(?::[0-5]?\d)+))$/;
const SEXAGESIMAL = /^([-+]?)(\d[\d_]*(?::[0-5]?\d)+)(\.[\d_]*)$/;
const FLOAT = /^(?:[-+]?\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][-+]\d+)?$/;
const SPECIAL: Readonly<Record<string, number>> = {
  inf: Number.POSITIVE_INFINITY,
  '+inf': Number.POSITIVE_INFINITY,
  '-inf': Number.NEGATIVE_INFINITY,
  nan: Number.NaN,
};

/**
 * What an unquoted scalar means. What is no number, truth value or null is a string, dates included.
 * @param refuse makes the error for an integer that can't be kept
 */
export function plainScalar(text: string, refuse: (why: string) => Error): Value {
  if (text === '') return null;
  if (NULL.test(text)) return new Written(null, text);
  if (TRUE.test(text)) return text === 'true' ? true : new Written(true, text);
  if (FALSE.test(text)) return text === 'false' ? false : new Written(false, text);
  const data = number(text, refuse);
  if (data === null) return text;
  return String(data) === text ? data : new Written(data, text);
}

function number(text: string, refuse: (why: string) => Error): number | null {
  if (!/^[-+]?[.\d]/.test(text)) return null;
  const whole = integer(text);
  if (whole !== null) {
    const data = Number(whole);
    if (Number.isFinite(data) && BigInt(data) === whole) return data;
    throw refuse(
      `${text.slice(0, 60)} is too large for an integer: it would be rounded; put it in quotes if it is a name`,
    );
  }
  const digits = text.replaceAll('_', '');
  if (FLOAT.test(text)) return Number(digits);
  const parts = SEXAGESIMAL.exec(text);
  if (parts) {
    const [, sign, minutes = '', fraction = ''] = parts;
    const data = Number(base60(minutes.replaceAll('_', ''))) + Number(`0${fraction.replaceAll('_', '')}`);
    return sign === '-' ? -data : data;
  }
  const special = /^([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)$/.exec(text);
  return special && (SPECIAL[`${special[1]}${special[2]?.toLowerCase()}`] ?? null);
}

function integer(text: string): bigint | null {
  const parts = INTEGER.exec(text);
  if (parts === null) return null;
  const [, sign, ...groups] = parts.map((group) => group?.replaceAll('_', ''));
  const [binary, hexadecimal, octal, decimal, sexagesimal] = groups;
  if ([binary, hexadecimal, octal].includes('')) return null; // underscores only
  const size =
    sexagesimal !== undefined
      ? base60(sexagesimal)
      : BigInt(
          binary !== undefined
            ? `0b${binary}`
            : hexadecimal !== undefined
              ? `0x${hexadecimal}`
              : octal !== undefined
                ? `0o${octal}`
                : (decimal as string),
        );
  return sign === '-' ? -size : size;
}

function base60(digits: string): bigint {
  return digits.split(':').reduce((sum, each) => sum * 60n + BigInt(each), 0n);
}
