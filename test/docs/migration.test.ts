import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Finished, launcher, Machine, python, root } from '../support/machine.ts';
import { section, texts } from '../support/pages.ts';

interface Row {
  languages: { Python: string; 'Node.js': string };
  kind: 'leases' | 'length' | 'is';
  expected: unknown;
}

// The part about experiments is run by test/docs/experiments.test.ts.
const [before = ''] = (texts.get('docs/conventions.md') as string).split('\n## Beside gpu-owner\n');
const page = before.replace(section('docs/conventions.md', '## From the distributed experiments'), '');
const lines = page
  .split('\n')
  .filter((line) => /^\| (?!-)/.test(line) && !/\| (Python \| Node\.js|now) \|$/.test(line));
const isImport = (line: string) => line.startsWith('| `from ');
const imports = lines.filter(isImport).map((line) => {
  const now = /^\| `from (?:safe_gpu|gpu_lock|gpu_scheduler) import .*` \| `(.*)` \|$/.exec(line)?.[1];
  if (now === undefined) throw new Error(`docs/conventions.md: this import can't be tested: ${line}`);
  return now;
});
const isCommand = (line: string) => / <!-- prints .* --> \|$/.test(line);
const commands = lines.filter(isCommand).map((line) => {
  const [, words, printed] = /^\| .*? \| `gpu-owner (.*)` <!-- prints (.*) --> \|$/.exec(line) ?? [];
  if (words === undefined) throw new Error(`docs/conventions.md: this command can't be tested: ${line}`);
  return [words, printed] as const;
});
const rows = lines
  .filter((line) => !isImport(line) && !isCommand(line))
  .map((line): Row => {
    const [, py = '', js = '', kind, expected = ''] =
      /^\|(?: .*? \|)? `([^|]*?)` \| `([^|]*?)` <!-- (leases|length|is) (.*) --> \|$/.exec(line) ?? [];
    if (kind === undefined)
      throw new Error(`docs/conventions.md: this line of a table can't be tested: ${line}`);
    const languages = { Python: py, 'Node.js': js };
    return { languages, kind: kind as Row['kind'], expected: JSON.parse(expected) };
  });

/** Lines that claim need a process each. */
const claims = rows.filter(({ kind }) => kind === 'leases');
const looks = rows.filter(({ kind }) => kind !== 'leases');

/** Declarations that the lines need, which have names of their own for all that they import. */
const PREPARED = ['import gpu_owner, json, gpu_owner as it', ...imports, 'from gpu_owner import *'].join(
  '\n',
);

const looksInPython = `${PREPARED}\nprint(json.dumps([${looks.map(({ languages }) => languages.Python).join()}]))`;
const looksInNode = `console.log(JSON.stringify([${looks.map(({ languages }) => languages['Node.js']).join()}]));`;

/** Prints how many GPUs are leased then. */
function inPython({ languages }: Row): string {
  const code = languages.Python;
  const leased = 'sum(gpu.state == "leased" for gpu in it.status())';
  const inside = code.startsWith('with ') ? (code.endsWith(':') ? ' print' : '; print') : '\nprint';
  return `${PREPARED}\noccupy = lambda device_no: object()\n${code}${inside}(${leased})`;
}

const inNode = ({ languages }: Row) =>
  `${languages['Node.js']}\nconsole.log((await getGPUs()).filter(({ state }) => state === 'leased').length);`;

const _IMPORTS = `import { findFreeGPUs, getGPUs, GPUOwner } from 'gpu-owner';\n`;

let machine: Machine;
let stubs = '';

beforeAll(() => {
  machine = new Machine(4);
  // The parts of these packages that placeholder functions use.
  stubs = join(machine.directory, 'stubs');
  mkdirSync(stubs);
  writeFileSync(join(stubs, 'torch.py'), 'def zeros(count, device): return device\n');
  writeFileSync(
    join(stubs, 'tensorflow.py'),
    'import contextlib\n@contextlib.contextmanager\ndef device(name): yield\ndef constant(value): return value\n',
  );
});
afterAll(() => machine.close());

/** @param expected what is printed as JSON */
function check({ code, stdout, stderr }: Finished, expected: (value: unknown) => void): void {
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expected(JSON.parse(stdout));
}

function checkLooks(ended: Finished): void {
  check(ended, (values) => {
    for (const [at, { kind, expected, languages }] of looks.entries()) {
      const value = (values as unknown[])[at];
      expect(kind === 'length' ? (value as unknown[]).length : value, languages.Python).toEqual(expected);
    }
  });
}

test('the page has the calls of all tools', () => {
  expect(rows.length).toBeGreaterThan(20);
  const all = [...imports, ...rows.map(({ languages }) => languages.Python)].join('\n');
  const calls = [
    ...['safe_gpu.GPUOwner()', 'claim_gpus', 'release_gpus', 'placeholder_fn', 'PytorchPlaceholder'],
    ...['lock_gpu(uid=0)', 'lock_gpu()', 'n_system_gpus', 'GPUScheduler()'],
  ];
  const parameters = [
    ...['memory_free_threshold_gb', 'power_threshold_w', 'utilization_threshold_percent', 'max_wait_time'],
    ...['poll_interval', 'specific_gpus', 'timeout', 'num_gpus', 'debug_mode'],
  ];
  const functions = [
    ...[
      'get_gpu_info',
      'get_gpu_memory_usage',
      'get_gpu_names',
      'get_gpu_power_usage',
      'get_gpu_utilization',
    ],
    ...['get_total_num_gpus', 'find_free_gpus'],
  ];
  for (const name of [...calls, ...parameters, ...functions]) expect(all).toContain(name);
});

describe('commands', () => {
  test.each(commands)('gpu-owner %s prints what the page says', async (words, printed) => {
    const { code, stdout, stderr } = await machine.runCommand(words.split(' '));
    expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: `${printed}\n`, stderr: '' });
  });

  test("all options of the scheduler's command are there", () => {
    for (const option of [
      ...['--num-gpus', '--memory-threshold-gb', '--power-threshold-w', '--utilization-threshold-percent'],
      ...['--no-wait', '--poll-interval', '--max-wait-time'],
    ])
      expect(page).toMatch(new RegExp(`^\\| \`${option}( \\d+)?\` \\| \`gpu-owner`, 'm'));
  });
});

describe('Python', () => {
  const run = (code: string) => {
    const env = { PYTHONPATH: `${join(root, 'python')}:${stubs}`, GPU_OWNER_COMMAND: launcher };
    return machine.run([python, '-W', 'error', '-c', code], { env });
  };

  test('has all that looks', async () => checkLooks(await run(looksInPython)));

  test.each(claims.map((row) => [row.languages.Python, row] as const))('works: %s', async (_, row) => {
    check(await run(inPython(row)), (value) => expect(value).toEqual(row.expected));
  });

  test('leaves no GPU leased', async () => {
    expect(await machine.states()).toEqual(['free', 'free', 'free', 'free']);
  });
});

describe('Node.js', () => {
  const run = (code: string) =>
    machine.runScript(`const { findFreeGPUs, getGPUs } = gpuOwner, occupy = () => {};\n${code}`);

  test('has all that looks', async () => checkLooks(await run(looksInNode)));

  test.each(claims.map((row) => [row.languages['Node.js'], row] as const))('works: %s', async (_, row) => {
    check(await run(inNode(row)), (value) => expect(value).toEqual(row.expected));
  });
});
