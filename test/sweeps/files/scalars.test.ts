import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { plainScalar } from '../../../lib/sweeps/files/yaml-tree.ts';
import { normalizeCell, normalizeValue } from '../../../lib/sweeps/tables/cell-value.ts';
import { canonical, formatValue, Literal, stringifyValue, taskId } from '../../../lib/sweeps/task/index.ts';
import { python } from '../../support/machine.ts';
import { open, parameters, tasks } from './sweeps.ts';

const refuse = (why: string) => new Error(why);
const data = (text: string): unknown => {
  const value = plainScalar(text, refuse);
  return value instanceof Literal ? value.data : value;
};

/** Values that PyYAML makes of unquoted scalars, and all spellings of that. Strings are their own spelling. */
const READINGS: readonly (readonly [meaning: unknown, ...spellings: string[]])[] = [
  [0, '0', '-0', '00', '0_', '0.', '0.0', '0x0', '0b0', '0.0e+5'],
  [1, '1', '+1', '01', '1.', '1.0', '1_', '1__', '0x1', '0b1', '1.0e+0', '0.1e+1'],
  [-1, '-1', '-1.', '-0x1', '-01', '-1.0E+0'],
  [1000, '1000', '1_000', '1_000.0', '1.e+3', '1.0e+3', '1_0.00e+2', '+1.0E+3'],
  [0.001, '0.001', '.001', '1.0e-3', '1.e-3', '.1e-2', '+0.001'],
  [0.0005, '0.0005', '5.0e-4', '5.e-4', '5.0E-4', '.5e-3'],
  [1500, '1500', '1.5e+3', '1.5E+3', '.15e+4'],
  [8, '8', '010', '0_10', '0b1000', '+010'],
  [-8, '-8', '-010'],
  [31, '31', '0x1F', '0x1f', '0x_1F', '0b1_1111', '037', '+0x1F'],
  [90, '1:30', '1:30.', '+1:30', '01:30.0', '1_:30'],
  [-5400, '-1:30:00'],
  [685_230.15, '190:20:30.15', '685230.15', '685_230.15', '6.85230_15e+5'],
  [9007199254740992, '9007199254740992', '9007199254740993.0'],
  [Number.POSITIVE_INFINITY, '.inf', '.Inf', '.INF', '+.inf', '1.0e+400'],
  [Number.NEGATIVE_INFINITY, '-.inf', '-.INF'],
  [Number.NaN, '.nan', '.NaN', '.NAN'],
  [true, 'yes', 'Yes', 'YES', 'true', 'True', 'TRUE', 'on', 'On', 'ON'],
  [false, 'no', 'No', 'NO', 'false', 'False', 'FALSE', 'off', 'Off', 'OFF'],
  [null, '~', 'null', 'Null', 'NULL', ''],
];
/** Numbers to everybody but YAML 1.1: without a dot, without the exponent's sign, or with a sign before the dot. */
const NUMBERS_IN_STRINGS = [
  ...['5e-4', '5E-4', '1e3', '1e+3', '1E5', '-2e+10', '+1e-3', '1_0e-3', '1e0'],
  ...['1.5e3', '1.e4', '.5e3', '5.0E4', '-.5', '+.5', '-.5e+3', '+.5e1', '-.5e1'],
];
const STRINGS = [
  ...NUMBERS_IN_STRINGS,
  ...['0e99', '0e0', '12e4567', '1e-999', '1e', 'e5', '.e1', '1e5.0', '1e-'],
  ...[
    '08',
    '-08',
    '09',
    '0o7',
    '0o10',
    '0O7',
    '0XFF',
    '0B1',
    '0x',
    '0xG',
    '0b2',
    '0b12',
    '_1',
    '-_1',
    '0x-1',
  ],
  ...['1:60', '1:99', '0:30', '12:3:99', '1.2.3', '1..2', '--1', '1 2', '1,2', '1,000', '1a', '½'],
  ...[
    'y',
    'n',
    'Y',
    'N',
    'yEs',
    'tRUE',
    'nULL',
    'None',
    'none',
    'inf',
    'nan',
    'NaN',
    '-.nan',
    '+.nan',
    '.iNF',
  ],
  ...['.', '..', '...x', '+', 'a', '2001-12', '1-2-3'],
];
/** PyYAML makes objects of them, which the original can't send. */
const DATES = ['2026-01-01', '2001-12-14', '2001-12-14 21:59:43', '2001-12-14t21:59:43.10-05:00'];
const SPELLINGS = READINGS.flatMap(([, ...spellings]) => spellings).filter((text) => text !== '');

describe('a scalar', () => {
  test.each(READINGS)('means what it means to PyYAML: %j', (meaning, ...rest) => {
    const spellings = rest as string[];
    expect(spellings.map((text) => [text, data(text)])).toEqual(spellings.map((text) => [text, meaning]));
  });

  test('is a string if it is nothing else, also a date', () => {
    expect([...STRINGS, ...DATES].filter((text) => data(text) !== text)).toEqual([]);
  });

  test.each(['9007199254740993', '-9007199254740993', '0xFFFFFFFFFFFFFFFF', '9'.repeat(400)])(
    'is refused where it would be rounded: %s',
    (text) => {
      expect(() => plainScalar(text, refuse)).toThrow(/too large for an integer.*quote it/);
    },
  );

  const installed = [python, 'python3'].find(
    (program) => spawnSync(program, ['-c', 'import yaml']).status === 0,
  );
  const why = installed === undefined ? 'no python3 here has PyYAML' : 'it is installed here';
  test.skipIf(installed === undefined)(`the table above is what PyYAML itself says: ${why}`, () => {
    const script = `import sys, yaml, json
def meaning(v):
    if isinstance(v, float) and v - v != 0: return repr(v)
    return v if v is None or isinstance(v, (bool, int, float, str)) else 'an object'
json.dump([meaning(yaml.safe_load('a: ' + text)['a']) for text in json.load(sys.stdin)], sys.stdout)`;
    const ask = (texts: readonly string[]): unknown[] => {
      const input = JSON.stringify(texts);
      const { stdout, stderr } = spawnSync(installed as string, ['-c', script], { input, encoding: 'utf8' });
      expect(stderr).toBe('');
      return JSON.parse(stdout);
    };
    const special: Record<string, number> = {
      inf: Number.POSITIVE_INFINITY,
      '-inf': Number.NEGATIVE_INFINITY,
      nan: Number.NaN,
    };
    const theirs = ask(SPELLINGS).map((value) => special[String(value)] ?? value);
    expect(SPELLINGS.map((text, i) => [text, data(text), theirs[i]])).toEqual(
      SPELLINGS.map((text, i) => [text, theirs[i], theirs[i]]),
    );
    expect(ask(STRINGS)).toEqual(STRINGS);
    expect(ask(DATES)).toEqual(DATES.map(() => 'an object'));
  });
});

describe('a string that is a number to everybody else', () => {
  test('is a string where a task is handed out', () => {
    for (const text of NUMBERS_IN_STRINGS) {
      expect(stringifyValue(plainScalar(text, refuse))).toBe(JSON.stringify(text));
    }
  });

  test('is equal to the number: spelling it otherwise makes no new task', async () => {
    const found = await tasks(
      'p: {combinations: [{lr: [5e-4, 0.0005, 5.0e-4], layers: [[1e2, -.5], [100, -0.5]]}]}',
    );
    expect(found).toHaveLength(6);
    expect(new Set(found.map(({ parameters }) => taskId(parameters))).size).toBe(1);
  });

  test('agrees with what pandas writes into a table', () => {
    for (const text of NUMBERS_IN_STRINGS) {
      const number = Number(text.replaceAll('_', ''));
      expect(canonical(text)).toBe(canonical(number));
      if (!text.includes('_')) expect(normalizeValue(text)).toBe(normalizeCell(String(number)));
    }
  });

  test('is a number on the command line, in lists too', async () => {
    const found = Array.from((await open({ grid: ['lr=5e-4', 'betas=[1e-3,.9],["1e-3"]'] })).tasks());
    expect(found.map(({ parameters }) => stringifyValue(parameters))).toEqual([
      '{"lr":5e-4,"betas":[1e-3,0.9]}',
      '{"lr":5e-4,"betas":["1e-3"]}',
    ]);
    const [inFile] = await tasks('p: {combinations: [{lr: [5e-4], betas: [[1e-3, .9]], seed: [1]}]}');
    const [inGrid] = (await open({ grid: ['lr=5e-4', 'betas=[1e-3,.9]', 'seed=1'] })).tasks();
    expect(taskId(inFile?.parameters ?? {})).toBe(taskId(inGrid?.parameters ?? {}));
  });

  test.each(['0e99', '12e4567', '1e-999', '0e0'])('stays what it is where it may be a hash: %s', (text) => {
    expect(canonical(text)).toBe(JSON.stringify(text));
  });
});

describe('a scalar that is shown', () => {
  test.each([...SPELLINGS, ...STRINGS])('is as it was written: %s', (text) => {
    expect(formatValue(plainScalar(text, refuse))).toBe(text);
  });

  test('is as it was written in commands and directories', async () => {
    const [task] = await tasks(
      'command: [run, "{lr}", "{flag}"]\np: {flag: yes, output_dir: "out_{lr}", combinations: [{lr: [1e-3]}]}',
    );
    expect(task?.command).toEqual({ words: ['run', '1e-3', 'yes'] });
    expect(task?.outputDirectory).toBe('out_1e-3');
  });

  test('is a string if it is quoted', async () => {
    const [task] = await tasks(`p: {a: "1", b: 'yes', c: !!str 2, combinations: [{d: ["1.0"]}]}`);
    expect(canonical(task?.parameters ?? {})).toBe('{"a":"1","b":"yes","c":"2","d":"1.0","seed":42}');
  });

  test('is a string if it is a block', async () => {
    expect(await parameters('a: |', '  x', '  y', 'b: >-', '  x', '  y')).toMatchObject({
      a: 'x\ny\n',
      b: 'x y',
    });
  });
});
