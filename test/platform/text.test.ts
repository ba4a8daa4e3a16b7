import { describe, expect, it } from 'vitest';
import { closest, sanitize, showValue } from '../../lib/platform/text.ts';

// biome-ignore lint/suspicious/noControlCharactersInRegex: exactly these must not be there
const HARMFUL = /[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]|\p{Surrogate}/u;

describe('sanitize', () => {
  it('leaves ordinary text of any language as it is', () => {
    for (const text of ['python train.py --lr=1e-3', 'Ärger, naïve, 学習, обучение', '🚀 gpu', 'a\'b"c\\d']) {
      expect(sanitize(text)).toBe(text);
    }
  });

  it('removes escape sequences whole', () => {
    expect(sanitize('\x1b[31mred\x1b[0m')).toBe('red');
    expect(sanitize('a\x1b]0;owned\x07b')).toBe('ab');
    expect(sanitize('a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\')).toBe('alink');
    expect(sanitize('a\x9b2Jb')).toBe('ab');
    expect(sanitize('a\x1bcb')).toBe('ab');
    expect(sanitize('a\x1bP1;2|xyz\x1b\\b')).toBe('ab');
  });

  it('keeps one line, and joins what line breaks separated', () => {
    expect(sanitize('a\r\nb\tc\u2028d')).toBe('a b c d');
    expect(sanitize('  spaces around \n')).toBe('spaces around');
  });

  it('removes directional overrides, invisible characters and broken halves of characters', () => {
    expect(sanitize('abc\u202Etxt.exe')).toBe('abctxt.exe');
    expect(sanitize('a\u200bb\u2066c\ufeffd\u{e0041}')).toBe('abcd');
    expect(sanitize('a\ud800b')).toBe('ab');
  });

  it('cuts to a number of characters and shows that it did', () => {
    expect(sanitize('x'.repeat(50), 10)).toBe(`${'x'.repeat(9)}…`);
    expect(sanitize('x'.repeat(10), 10)).toBe('x'.repeat(10));
    expect(Array.from(sanitize('🚀'.repeat(50), 10))).toHaveLength(10);
    expect(sanitize('🚀'.repeat(10), 10)).toBe('🚀'.repeat(10));
  });

  it('gives an empty text for what is no text', () => {
    for (const value of [null, undefined, 7, {}, ['a'], Symbol('a')]) expect(sanitize(value)).toBe('');
  });

  it('lets nothing harmful through, whatever random mixture it is given', () => {
    const pieces = [
      '\x1b',
      '[',
      ']',
      '0;',
      '\x07',
      '\\',
      'm',
      '\x9d',
      '\x9c',
      'a',
      '\n',
      '\ud83d',
      '\u202e',
      'P',
      '\x00',
      ' ',
    ];
    let seed = 42;
    const next = (n: number) => {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      return Math.floor((seed / 2147483648) * n);
    };
    for (let i = 0; i < 5000; i++) {
      const text = Array.from({ length: next(30) }, () => pieces[next(pieces.length)]).join('');
      const clean = sanitize(text, 20);
      expect(clean).not.toMatch(HARMFUL);
      expect(sanitize(clean, 20)).toBe(clean);
      expect(Array.from(clean).length).toBeLessThanOrEqual(20);
    }
  });

  it('takes no time for megabytes of beginnings of sequences', () => {
    const start = performance.now();
    for (const piece of ['\x1b]', '\x9d', '\x1b[', '\x1bP0', '\x9b;', '\n']) sanitize(piece.repeat(1e6));
    expect(performance.now() - start).toBeLessThan(5000);
  });
});

describe('showValue', () => {
  it('shows what was given, short and harmless', () => {
    expect(showValue('20 Gib\x1b[2J')).toBe("'20 Gib'");
    expect(showValue(Number.NaN)).toBe('NaN');
    expect(showValue(-1)).toBe('-1');
    expect(showValue(null)).toBe('null');
    expect(showValue([])).toBe('an empty list');
    expect(showValue([1])).toBe('a list');
    expect(showValue({})).toBe('an object');
    expect(showValue(() => 1)).toBe('a function');
    expect(showValue(12n)).toBe('12n');
    expect(showValue('y'.repeat(1e6)).length).toBeLessThan(70);
  });
});

describe('closest', () => {
  const known = ['minFreeMemory', 'maxUsedMemory', 'maxPower', 'devices', 'exclude', 'excludeAll'];
  it('finds what a mistyped word meant', () => {
    expect(closest('minFreeMemroy', known)).toBe('minFreeMemory');
    expect(closest('min-free-memory', known)).toBe('minFreeMemory');
    expect(closest('max_power', known)).toBe('maxPower');
    expect(closest('device', known)).toBe('devices');
    expect(closest('excludeall', known)).toBe('excludeAll');
  });
  it('suggests nothing for something else', () => {
    for (const word of ['colour', '', 'x', 'z'.repeat(10000)]) expect(closest(word, known)).toBeNull();
    expect(closest('4', ['[', 'w', '7z'])).toBeNull();
  });
});
