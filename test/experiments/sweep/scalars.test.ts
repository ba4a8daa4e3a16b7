import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { plainScalar } from '../../../lib/experiments/sweep/scalars.ts';
import { canonical, show, Written } from '../../../lib/experiments/written.ts';
import { python } from '../../machine.ts';
import { parameters, tasks } from './sweeps.ts';

const refuse = (why: string) => new Error(why);
const data = (text: string): unknown => {
  const value = plainScalar(text, refuse);
  return value instanceof Written ? value.data : value;
};

const NUMBERS = [
  ...[
    '0',
    '1',
    '-1',
    '+1',
    '1_000',
    '010',
    '-010',
    '0x1F',
    '0b101',
    '1:30',
    '-1:30:00',
    '190:20:30',
    '1.0',
    '.5',
    '1.',
    '-1.5',
  ],
  ...[
    '1.5e+3',
    '1.5e-3',
    '1_0.5',
    '1:30.5',
    '.inf',
    '-.inf',
    '+.INF',
    '.nan',
    '.NaN',
    '9007199254740993.0',
    '9007199254740992',
  ],
];
const OTHERS = [
  ...[
    'yes',
    'Yes',
    'YES',
    'no',
    'on',
    'Off',
    'true',
    'True',
    'TRUE',
    'false',
    'tRUE',
    'y',
    'n',
    '~',
    'null',
    'Null',
    'nULL',
  ],
  ...[
    '08',
    '09',
    '0o10',
    '0x',
    '1__',
    'a',
    '1a',
    '-',
    '+',
    '.',
    '..',
    '1:60',
    '1:99',
    ':',
    'e5',
    '2001-12-14',
    '12:30',
    '0xG',
  ],
  ...[
    '1..2',
    '--1',
    '1 2',
    '+.nan',
    'inf',
    'nan',
    'None',
    '1.2.3',
    '0b',
    '0b2',
    '0b12',
    '1e',
    '12e4567',
    '0e99',
    '1,2',
  ],
];

describe('scalars mean what they mean to PyYAML', () => {
  test.each([
    ['yes', true],
    ['off', false],
    ['~', null],
    ['', null],
    ['010', 8],
    ['0x1F', 31],
    ['0b11', 3],
    ['1_000', 1000],
    ['1:30', 90],
    ['-1:30', -90],
    ['1.0', 1],
    ['.inf', Number.POSITIVE_INFINITY],
    ['-.inf', Number.NEGATIVE_INFINITY],
    ['.nan', Number.NaN],
    ['08', '08'],
    ['2026-01-01', '2026-01-01'],
    ['0o10', '0o10'],
  ])('%s is %s', (text, value) => {
    expect(data(text)).toEqual(value);
  });

  test.each(['1e-3', '1E5', '1.5e3', '-2e+10', '-.5', '+.5e1'])(
    '%s is a number, though not to PyYAML',
    (text) => {
      expect(data(text)).toBe(Number(text));
    },
  );

  test.each(['12e4567', '0e99', '1e-999', '0e0'])('%s may be a hash, and stays a string', (text) => {
    expect(data(text)).toBe(text);
  });

  test.each(['9007199254740993', '-9007199254740993', '0xFFFFFFFFFFFFFFFF', '9'.repeat(400)])(
    '%s would be rounded, and is refused',
    (text) => {
      expect(() => plainScalar(text, refuse)).toThrow(/too large for an integer.*in quotes/);
    },
  );

  const probe = spawnSync(python ?? 'python3', ['-c', 'import yaml']);
  test.skipIf(probe.status !== 0)('asked of PyYAML itself (where it is installed)', () => {
    const script =
      'import sys, yaml, json, datetime\n' +
      'def plain(v):\n' +
      '  if isinstance(v, bool) or v is None: return repr(v)\n' +
      '  if isinstance(v, (int, float)): return "number " + repr(float(v))\n' +
      '  return "string"\n' +
      'print(json.dumps([plain(yaml.safe_load("a: " + t)["a"]) for t in json.load(sys.stdin)]))';
    const texts = [...NUMBERS, ...OTHERS].filter((text) => !['0b', '0x', '-', ':'].includes(text));
    const { stdout, stderr } = spawnSync(python ?? 'python3', ['-c', script], {
      input: JSON.stringify(texts),
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    const theirs = JSON.parse(stdout) as string[];
    const ours = texts.map((text) => {
      const value = data(text);
      if (value === null) return 'None';
      if (typeof value === 'boolean') return value ? 'True' : 'False';
      return typeof value === 'number' ? `number ${value}` : 'string';
    });
    const same = (a: string, b: string) =>
      a === b || (a.startsWith('number ') && b.startsWith('number ') && pythonNumber(a) === pythonNumber(b));
    expect(texts.filter((_, i) => !same(ours[i] as string, theirs[i] as string))).toEqual([]);
  });
});

function pythonNumber(text: string): string {
  return String(Number(text.slice(7).replace('inf', 'Infinity').replace('nan', 'NaN')));
}

describe('and are shown as they were written', () => {
  test.each([...NUMBERS, ...OTHERS])('%s', (text) => {
    expect(show(plainScalar(text, refuse))).toBe(text);
  });

  test('in commands, directories and other strings', async () => {
    const [task] = await tasks(
      'command: [run, "{lr}", "{flag}"]\np: {flag: yes, output_dir: "out_{lr}", name: "n-{lr}-{flag}", combinations: [{lr: [1e-3]}]}',
    );
    expect(task?.command).toEqual({ words: ['run', '1e-3', 'yes'] });
    expect(task?.outputDirectory).toBe('out_1e-3');
    expect(task?.parameters.name).toBe('n-1e-3-yes');
  });

  test('quotes make strings of them', async () => {
    const [task] = await tasks(`p: {a: "1", b: 'yes', c: !!str 2, combinations: [{d: ["1.0"]}]}`);
    expect(canonical(task?.parameters ?? {})).toBe('{"a":"1","b":"yes","c":"2","d":"1.0"}');
  });

  test('blocks are strings', async () => {
    expect(await parameters('a: |', '  x', '  y', 'b: >-', '  x', '  y')).toMatchObject({
      a: 'x\ny\n',
      b: 'x y',
    });
  });
});
