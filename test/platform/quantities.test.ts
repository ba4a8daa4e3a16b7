import { describe, expect, it } from 'vitest';
import { GPUOwnerError } from '../../lib/errors.ts';
import {
  formatBytes,
  formatDuration,
  formatSince,
  parseCelsius,
  parseDuration,
  parsePercent,
  parseSize,
  parseWatts,
} from '../../lib/platform/quantities.ts';

const NO_NUMBERS: unknown[] = [
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  -1,
  -0.001,
  'NaN',
  'Infinity',
  '-1',
  '-5GiB',
  '',
  ' ',
  'lots',
  '0x10',
  '1e3',
  '1,5',
  '1_000',
  '1 2',
  '١٢',
  '9'.repeat(400),
  '1.',
  '.5',
  '+5',
  '5\n6',
  null,
  undefined,
  true,
  [],
  [5],
  {},
  { valueOf: () => 5 },
  5n,
  Symbol('5'),
  new Date(5),
];

function refusal(run: () => unknown): GPUOwnerError {
  try {
    const result = run();
    expect.unreachable(`accepted, as ${String(result)}`);
  } catch (error) {
    expect(error).toBeInstanceOf(GPUOwnerError);
    expect((error as GPUOwnerError).code).toBe('ERR_INVALID_ARGUMENT');
    return error as GPUOwnerError;
  }
}

describe('parseSize', () => {
  it.each([
    [0, 0],
    [2 ** 20, 1048576],
    ['1048576', 1048576],
    ['0', 0],
    ['512B', 512],
    ['100 B', 100],
    ['1KiB', 1024],
    ['100MiB', 100 * 1024 ** 2],
    ['20GiB', 20 * 1024 ** 3],
    ['20gib', 20 * 1024 ** 3],
    ['1.5 GB', 1_500_000_000],
    ['1.5GiB', 1.5 * 1024 ** 3],
    ['20G', 20 * 1024 ** 3],
    ['20GB', 20_000_000_000],
    ['2TiB', 2 * 1024 ** 4],
    [' 7 kB ', 7000],
    ['0.1KiB', 102],
  ])('reads %j as %d bytes', (text, bytes) => {
    expect(parseSize(text)).toBe(bytes);
  });

  it.each([
    ...NO_NUMBERS,
    2 ** 21 + 0.5,
    '1.5B',
    '20 GiBs',
    '20Gbit',
    '20GiB free',
    'GiB',
    '10000000TiB',
    2 ** 53,
    '5%',
  ])('refuses %o', (value) => {
    expect(refusal(() => parseSize(value, 'minFreeMemory')).message).toMatch(/^minFreeMemory: .*'20GiB'/);
  });

  it.each([
    [20, "'20GiB' or '20MiB'"],
    ['20', "'20GiB' or '20MiB'"],
    [' 2.5 ', "'2.5GiB' or '2.5MiB'"],
    ['500', "'500MiB'"],
    [0.5, "'0.5GiB' or '0.5MiB'"],
    [2 ** 20 - 1, "'1048575MiB'"],
  ])('refuses %j, which was not meant as bytes', (value, remedy) => {
    const { message } = refusal(() => parseSize(value, '--min-free-memory'));
    expect(message).toMatch(/^--min-free-memory: .* is not a size without its unit; use /);
    expect(message.split('; use ')[1]).toBe(remedy);
  });

  it('gives bytes back for every size it writes', () => {
    for (let bytes = 1; bytes < 2 ** 50; bytes = Math.ceil(bytes * 1.37)) {
      expect(Math.abs(parseSize(formatBytes(bytes)) - bytes) / bytes).toBeLessThan(0.051);
    }
  });
});

describe('parseDuration', () => {
  it.each([
    [0, 0],
    [1500, 1500],
    [0.5, 0.5],
    ['0', 0],
    ['250ms', 250],
    ['30s', 30_000],
    ['10m', 600_000],
    ['10 min', 600_000],
    ['2h', 7_200_000],
    ['1d', 86_400_000],
    ['1.5h', 5_400_000],
    ['1h30m', 5_400_000],
    ['1h 30min 5s', 5_405_000],
    ['2H', 7_200_000],
  ])('reads %j as %d ms', (text, milliseconds) => {
    expect(parseDuration(text)).toBe(milliseconds);
  });

  it.each([
    ...NO_NUMBERS,
    '10 minutes ago',
    '30m1h',
    '1m1m',
    '5y',
    'h',
    '1h-',
    `${'9'.repeat(60)}d`,
    '1h'.repeat(1e5),
  ])('refuses %o', (value) => {
    expect(refusal(() => parseDuration(value, 'maxWait')).message).toMatch(/^maxWait: /);
  });

  it('asks for the unit where one is missing', () => {
    expect(refusal(() => parseDuration('30', '--wait')).message).toBe(
      "--wait: '30' is not a duration without its unit; use '30s', '30m', '30h' or '30d'",
    );
  });

  it('proposes a number without a unit only where one was given', () => {
    const right = "use '30s', '10m', '2h'";
    expect(refusal(() => parseDuration('-1', '--wait')).message).toBe(
      `--wait: '-1' is not a duration; ${right} or '1h30m'`,
    );
    expect(refusal(() => parseDuration(-1, 'maxWait')).message).toBe(
      `maxWait: -1 is not a duration; ${right}, '1h30m' or a number of milliseconds`,
    );
  });
});

describe('parsers of percentages, watts and degrees', () => {
  it('take numbers and texts with their unit', () => {
    expect(parsePercent(0)).toBe(0);
    expect(parsePercent('12.5%')).toBe(12.5);
    expect(parsePercent(100)).toBe(100);
    expect(parseWatts('80')).toBe(80);
    expect(parseWatts('82.5 W')).toBe(82.5);
    expect(parseCelsius('60°C')).toBe(60);
    expect(parseCelsius('60c')).toBe(60);
  });

  it.each(NO_NUMBERS)('refuse %o', (value) => {
    expect(refusal(() => parsePercent(value, 'maxUtilization')).message).toMatch(/^maxUtilization: /);
    expect(refusal(() => parseWatts(value, 'maxPower')).message).toMatch(/^maxPower: /);
    expect(refusal(() => parseCelsius(value, 'maxTemperature')).message).toMatch(/^maxTemperature: /);
  });

  it('tell their units apart', () => {
    refusal(() => parsePercent(100.1));
    refusal(() => parsePercent('5W'));
    refusal(() => parseWatts('5%'));
    refusal(() => parseCelsius('60F'));
  });
});

it('errors print hostile values harmlessly', () => {
  const { message } = refusal(() => parseSize(`\x1b[2J\n${'x'.repeat(1e6)}`, 'minFreeMemory'));
  expect(message).not.toContain('\x1b');
  expect(message).not.toContain('\n');
  expect(message.length).toBeLessThan(200);
});

describe('formatBytes', () => {
  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1 KiB'],
    [100 * 1024 ** 2, '100 MiB'],
    [31.2 * 1024 ** 3, '31.2 GiB'],
    [1024 ** 3 - 1, '1 GiB'],
    [1024 ** 6 * 2, '2048 PiB'],
    [null, 'unknown'],
    [Number.NaN, 'unknown'],
  ])('writes %d as %s', (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });
});

describe('formatDuration', () => {
  it.each([
    [0, '0 ms'],
    [250.9, '250 ms'],
    [1000, '1 s'],
    [45_999, '45 s'],
    [90_000, '1 min 30 s'],
    [3_600_000, '1 h'],
    [7_500_000, '2 h 5 min'],
    [3_605_000, '1 h'],
    [(3 * 24 + 4) * 3_600_000 + 59_000, '3 d 4 h'],
    [-5, '0 ms'],
    [null, 'unknown'],
  ])('writes %d ms as %s', (milliseconds, text) => {
    expect(formatDuration(milliseconds)).toBe(text);
  });
});

describe('formatSince', () => {
  const now = new Date(2025, 10, 21, 16, 0).getTime();

  it('writes the time of today and the day of any other', () => {
    expect(formatSince(new Date(2025, 10, 21, 14, 3), now)).toBe('14:03');
    expect(formatSince(new Date(2025, 10, 19, 14, 3).toISOString(), now)).toBe('2025-11-19 14:03');
    expect(formatSince(new Date(2025, 10, 20, 23, 59), now)).toBe('23:59 yesterday');
    expect(formatSince(new Date(2025, 10, 22, 0, 25), now)).toBe('00:25 tomorrow');
    expect(formatSince(new Date(2025, 10, 23, 0, 0), now)).toBe('2025-11-23 00:00');
    const newYearsEve = new Date(2025, 11, 31, 22, 0).getTime();
    expect(formatSince(new Date(2026, 0, 1, 3, 0), newYearsEve)).toBe('03:00 tomorrow');
    expect(formatSince(new Date(2024, 10, 21, 14, 3).getTime(), now)).toBe('2024-11-21 14:03');
  });

  it('writes nothing for what is no moment', () => {
    for (const since of [
      null,
      undefined,
      '',
      'yesterday',
      Number.NaN,
      8.7e15,
      '+275760-01-01',
      '0001-01-01',
      '\x1b[2J',
    ]) {
      expect(formatSince(since, now)).toBeNull();
    }
  });
});
