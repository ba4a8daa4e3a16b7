import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Finished, Machine } from '../support/machine.ts';
import { processesWith } from '../support/processes.ts';

let machine: Machine;
beforeAll(() => {
  machine = new Machine(4);
});
afterAll(() => machine.close());

async function expectNothingLeft(): Promise<void> {
  expect(processesWith(machine.directory)).toEqual([]);
  expect(await machine.states()).toEqual(['free', 'free', 'free', 'free']);
  expect([0, 1, 2, 3].flatMap((gpu) => machine.processes(gpu))).toEqual([]);
}

/** One message of ours, without a stack trace, without anything that a terminal would obey, not endless. */
function expectMessage({ stdout, stderr }: Finished, pattern: RegExp): void {
  expect(stdout).toBe('');
  expect(stderr).toMatch(/^gpu-owner(: | simulator: .*\ngpu-owner: )/);
  expect(stderr).toMatch(pattern);
  expect(stderr).not.toMatch(/\n {4}at |Error:/);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(stderr).not.toMatch(/[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffd]/);
  expect(stderr.length).toBeLessThan(1_500);
}

const LONG = 'x'.repeat(100_000);
const ODD = '\u001b[31mred\u202e\u0007';

describe('the command', () => {
  // `run` unless another command comes first; the command that is run would show that the claim was made.
  const CASES: [args: string[], code: number, message: RegExp][] = [
    // Counts
    [['-n', '0,1'], 64, /-n: '0,1' is not a number of GPUs; use 1, 2, …, or, .*, --devices 0,1$/m],
    [['-n', '0'], 64, /-n: 0 is not a number of GPUs; use 1, 2, …/],
    [['-n', ODD], 64, /-n: 'red' is not a number of GPUs/],
    [['-n', '5'], 64, /5 GPUs asked for, but this machine has 4:\n {2}GPU 0: free\n/],
    // Which GPUs
    [['--devices', '9'], 64, /--devices: this machine has no GPU '9'\. There are 0 \(Simulated GPU, GPU-/],
    [['--devices', '0-9'], 64, /--devices: this machine doesn't have all GPUs of '0-9'/],
    [['--devices', 'GPU-ffff'], 64, /--devices: this machine has no GPU 'GPU-ffff'/],
    [['--devices', 'GPU-0000'], 64, /'GPU-0000' is the beginning of 4 UUIDs; write more of it/],
    [['--devices', '0:1'], 64, /this machine has no MIG instance '0:1'/],
    [['--devices', LONG], 64, /--devices: 'x{59}…' isn't the name of a GPU/],
    [
      ['--exclude', '0-3'],
      64,
      /this machine has 4, of which none may be used here:\n {2}GPU 0: excluded by --exclude/,
    ],
    [['--devices', '0', '-n', '2'], 64, /2 GPUs asked for, but this machine has 4, of which 1 may be used/],
    // Thresholds
    ...(
      [
        ['--min-free-memory', LONG, 'a size; use'],
        ['--max-used-memory', ODD, 'a size; use'],
        ['--max-power', '-1', 'a power in watts; use'],
        ['--max-utilization', ODD, 'a percentage from 0 to 100; use'],
        ['--max-temperature', '-1', 'a temperature in degrees Celsius; use'],
      ] as const
    ).map(([option, value, what]): [string[], number, RegExp] => [
      ['find', `${option}=${value}`],
      64,
      new RegExp(`^gpu-owner: ${option}: '.*' is not ${what}`),
    ]),
    [['--min-free-memory', '999TiB', '--no-wait'], 75, /has only 79\.5 GiB|has only 80 GiB of memory in all/],
    [
      ['--max-used-memory', '500'],
      64,
      /--max-used-memory: '500' is not a size without its unit; use '500MiB'/,
    ],
    // Durations
    [['--wait=abc'], 64, /--wait: 'abc' is not a duration; use '30s'/],
    [['report', '--since', '7'], 64, /--since: '7' is not a duration without its unit; use .* or '7d'$/m],
    // Time limits
    [['--for', '0'], 64, /--for: '0' leaves no time; use '90s'/],
    [['--for'], 64, /--for needs a value, but '--' follows/],
    [['--signal', 'USR1@5m'], 64, /--signal needs a time limit; for example: --for 4h --signal USR1@5m/],
    [['--for=4h', '--signal', 'SIGKILL@5m'], 64, /--signal: no program can catch KILL; use another/],
    [['--for=4h', '--signal', 'USR1@0'], 64, /--signal: '0' must be more than 0 and less than the limit/],
    // Options
    [['--min-fre-memory', '1'], 64, /there is no option --min-fre-memory; did you mean --min-free-memory\?/],
    [['-x'], 64, /there is no option -x; see --help/],
    [['--no–wait'], 64, /there is no option --no–wait; did you mean --no-wait\?/],
    [['--memory', '150%'], 64, /'150%' is not a percentage from 0 to 100; use '20GiB' or '25%'$/m],
    [['cancel', '--all', '1'], 64, /--all means all jobs; leave out the others/],
    [['submit', '--name', 'a,b', 'true'], 64, /'a,b' would be taken for several jobs; leave out the comma/],
    [['submit', '--name', '17_3', 'true'], 64, /'17_3' would be taken for a job's number; use a word/],
    [[`--${LONG}`], 64, /there is no option --x+…/],
    [[`--${ODD}`], 64, /there is no option --red; see --help/],
    [['--__proto__=1'], 64, /there is no option --__proto__/],
    [['-n'], 64, /-n needs a value/],
    [['--force=yes'], 64, /--force takes no value/],
    [['--wait', '--no-wait'], 64, /--wait and --no-wait contradict each other/],
    [['--placeholder', 'maybe'], 64, /--placeholder: 'maybe' is not valid; use 'auto', 'keep' or 'none'/],
    [['--simulate', '../4'], 64, /the simulated machine '\.\.\/4' can't be read \(ENOENT\): name a file/],
    // Commands
    [['find', 'train.py'], 64, /'train\.py' is not expected here; see --help/],
    [['hold', '--wait', '10m'], 64, /'10m' is not expected here; write --wait=10m/],
    [
      ['--wait', '4', 'true'],
      64,
      /'4' would be the command; write --wait=4s, --wait=4m, --wait=4h or --wait=4d$/m,
    ],
    [['status', '2s'], 64, /'2s' is not expected here; see --help/],
    [['statsu'], 64, /there is no command 'statsu'; did you mean 'status'\?/],
    [['python3', 'a b'], 64, /there is no command 'python3'; write: gpu-owner run python3 'a b'$/m],
    [['-n', '2', '--', 'ls'], 64, /options follow the name of a command; see gpu-owner --help$/m],
    [[''], 64, /there is no command ''/],
    [[ODD], 64, /there is no command 'red'/],
  ];
  const shown = CASES.map(
    ([args, ...rest], at) =>
      [args.map((arg) => JSON.stringify(arg.slice(0, 40))).join(' '), at, ...rest] as const,
  );
  const COMMANDS = [
    ...[
      'submit',
      'logs',
      'web',
      'cancel',
      'docs',
      'python3',
      '--',
      '--json',
      '-n2',
      '--frobnicate',
      '-v',
      'report',
      'metrics',
    ],
    'find',
    'hold',
    'status',
    'statsu',
    'kill',
    'qsub',
    'ps',
    'claim',
    'exp',
    '',
    ODD,
    '__proto__',
  ];

  const results: Finished[] = [];
  beforeAll(async () => {
    const lines = CASES.map(([args]) => {
      const isWhole = COMMANDS.includes(args[0] as string) || args.includes('--');
      return isWhole ? args : ['run', ...args, '--', 'echo', 'it ran'];
    });
    results.push(...(await machine.runCommands(lines)));
  });

  test.each(shown)('refuses %s', (_, at, code, message) => {
    const result = results[at] as Finished;
    expect(result.code).toBe(code);
    expectMessage(result, message);
  });

  test.each([
    ['65', /the simulated machine '65' can't be used/],
    [
      'h200x9',
      /one of h200x8, .*\ngpu-owner: the simulated machine 'h200x9' can't be used; the simulator says why above/,
    ],
  ])('refuses the simulated machine %s', async (name, message) => {
    const result = await machine.runCommand(['run', '--simulate', name, '--', 'echo', 'it ran']);
    expect(result.code).toBe(64);
    expectMessage(result, message);
  });

  test.each([[['run', '-n', '2']], [['run', '--']]])('says what is missing in %j', async (words) => {
    const result = await machine.runCommand(words);
    expect(result.code).toBe(64);
    expectMessage(result, /a command is missing; for example: gpu-owner run -n 2 -- python train\.py/);
  });

  test('runs a program that stands where a command belongs', async () => {
    const bin = join(machine.directory, 'bin');
    mkdirSync(bin);
    for (const name of ['python2', 'python3', 'torchrun'])
      writeFileSync(join(bin, name), '', { mode: 0o755 });
    const said = async (...words: string[]) =>
      (await machine.runCommand(words, { env: { PATH: bin }, cwd: machine.directory })).stderr;
    expect(await said('torchrun', 'x')).toMatch(/; write: gpu-owner run torchrun x$/m);
    expect(await said('run', 'python', 'x')).toMatch(/cannot run 'python': .*; write: python3 x$/m);
    expect(await said('abc', 'x')).toMatch(/there is no command 'abc'; see gpu-owner --help$/m);
  });

  test('prints the help without arguments, and exits as after a mistake', async () => {
    const { code, stdout } = await machine.runCommand([]);
    expect(code).toBe(64);
    expect(stdout).toMatch(/^Usage: gpu-owner COMMAND/);
  });

  test.each([
    [
      '1',
      ['-n', '2'],
      64,
      /2 GPUs asked for, but this machine has 4, of which 1 may be used here:\n {2}GPU 0: not in the CUDA_VISIBLE_DEVICES/,
    ],
    ['', [], 64, /CUDA_VISIBLE_DEVICES is '': no GPU is visible/],
    [LONG, [], 64, /CUDA_VISIBLE_DEVICES: 'x{59}…' names no single GPU/],
  ] as const)('explains an inherited CUDA_VISIBLE_DEVICES of %.20j', async (value, args, code, message) => {
    const result = await machine.runCommand(['run', ...args, '--', 'echo', 'it ran'], {
      env: { CUDA_VISIBLE_DEVICES: value },
    });
    expect(result.code).toBe(code);
    expectMessage(result, message);
  });

  test('names the places that were searched for a driver, and what to do', async () => {
    for (const name of ['status', 'run']) {
      const words = name === 'run' ? [name, '--', 'echo', 'it ran'] : [name];
      const result = await machine.runCommand(words, {
        env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_NVML_LIBRARY: '/nonexistent/libnvidia-ml.so.1' },
      });
      expect(result.code).toBe(69);
      expectMessage(
        result,
        /no NVIDIA driver found\..*\n {2}\/nonexistent\/libnvidia-ml\.so\.1: no such file\n.*set GPU_OWNER_SIMULATE=4/s,
      );
    }
  });

  test('says without a CUDA library what the placeholder needs, and how to do without', async () => {
    const env = { GPU_OWNER_CUDA_LIBRARY: '/nonexistent/libcuda.so.1' };
    const result = await machine.runCommand(['run', '--', 'echo', 'it ran'], { env });
    expect(result.code).toBe(69);
    expectMessage(result, /the CUDA driver library can't be used: .*nonexistent.*`--placeholder none`/);
    const without = await machine.runCommand(['run', '--placeholder', 'none', '--', 'echo', 'it ran'], {
      env,
    });
    expect(without).toEqual({ code: 0, signal: null, stdout: 'it ran\n', stderr: '' });
  });

  test.each([
    ['excludd: [0]\n', /config\.yaml:1: there is no key 'excludd'; did you mean 'exclude'\?/],
    ['exclude: [0\n', /config\.yaml:\d: not valid YAML/],
    ['lockDirectory: /tmp/mine\n', /lockDirectory is for the machine's file only/],
    ['\u0000\u001b]0;x\u0007', /config\.yaml/],
  ])('refuses a configuration file of %j', async (text, message) => {
    writeFileSync(join(machine.directory, 'config.yaml'), text);
    const configuration = join(machine.directory, 'configuration');
    await machine.run([
      'sh',
      '-c',
      `mkdir -p ${configuration}/gpu-owner; mv ${machine.directory}/config.yaml ${configuration}/gpu-owner`,
    ]);
    const result = await machine.runCommand(['run', '--', 'echo', 'it ran'], {
      env: { XDG_CONFIG_HOME: configuration },
    });
    expect(result.code).toBe(78);
    expectMessage(result, message);
  });

  afterAll(expectNothingLeft);
});

describe('the library', () => {
  const INVALID = 'ERR_INVALID_ARGUMENT';
  /** JavaScript that must throw, the error's code and its message. */
  const CASES: [source: string, code: string, message: RegExp][] = [
    ['new GPUOwner(0)', INVALID, /^count: 0 is not a number of GPUs; use 1, 2, …/],
    ['new GPUOwner(1.5)', INVALID, /^count: 1\.5 is not/],
    ['new GPUOwner(5)', INVALID, /^5 GPUs asked for, but this machine has 4:/],
    ["new GPUOwner('abc')", INVALID, /^options must be a number of GPUs \(2\), or an object .* not 'abc'/],
    ['new GPUOwner(null)', INVALID, /^options must be .* not null/],
    ['new GPUOwner(Symbol())', INVALID, /not a symbol/],
    ["new GPUOwner({ count: 'abc' })", INVALID, /^count: 'abc'/],
    ['new GPUOwner(2, { count: 3 })', INVALID, /^count is given twice, as 2 and as 3/],
    ['new GPUOwner({ cuont: 2 })', INVALID, /^there is no option 'cuont'; did you mean 'count'\?/],
    [`new GPUOwner(JSON.parse('{"__proto__": 1}'))`, INVALID, /^there is no option '__proto__'/],
    ["new GPUOwner({ '\\u001b[31mred\\u202e': 1 })", INVALID, /^there is no option 'red'/],
    ["new GPUOwner({ ['x'.repeat(1e6)]: 1 })", INVALID, /^there is no option 'x{59}…'/],
    ...[
      'minFreeMemory',
      'maxUsedMemory',
      'maxPower',
      'maxUtilization',
      'maxTemperature',
      'lockTimeout',
    ].flatMap((option) =>
      ["'abc'", '-1', 'NaN', "'x'.repeat(1e6)"].map((value): [string, string, RegExp] => [
        `new GPUOwner({ ${option}: ${value} })`,
        INVALID,
        new RegExp(`^${option}: .* is not a`),
      ]),
    ),
    ['new GPUOwner({ maxUtilization: 101 })', INVALID, /^maxUtilization: 101 is not a percentage/],
    [
      "new GPUOwner({ devices: 'GPU-ffff' })",
      INVALID,
      /^devices: this machine has no GPU 'GPU-ffff'\. There are/,
    ],
    ['new GPUOwner({ devices: [] })', INVALID, /^devices: an empty list allows no GPU/],
    ["new GPUOwner({ devices: 'x'.repeat(1e6) })", INVALID, /^devices: 'x{59}…'/],
    ["new GPUOwner({ exclude: '0-3' })", INVALID, /none may be used here/],
    ["new GPUOwner({ force: 'no' })", INVALID, /^force: 'no' is neither true nor false/],
    ['new GPUOwner({ placeholder: null })', INVALID, /^placeholder: null is not valid/],
    ["new GPUOwner({ lockDirectory: 'locks' })", INVALID, /^lockDirectory: 'locks' is not an absolute path/],
    ["new GPUOwner({ lockDirectory: '/tmp/a\\0b' })", INVALID, /^lockDirectory: /],
    ["new GPUOwner({ lockDirectory: '/' + 'x'.repeat(1e6) })", INVALID, /^lockDirectory: '\/x+…'/],
    [
      "new GPUOwner({ lockDirectory: '/proc/version' })",
      'ERR_LOCK_DIRECTORY',
      /\/proc\/version is not a directory/,
    ],
    [
      "new GPUOwner({ lockDirectory: '/nonexistent/locks' })",
      'ERR_LOCK_DIRECTORY',
      /the lock directory \/nonexistent\/locks can't be made: /,
    ],
    [
      "new GPUOwner({ minFreeMemory: '81GiB' })",
      'ERR_GPU_UNAVAILABLE',
      /GPU 0: has only .* of memory in all/,
    ],
    [
      'new GPUOwner({ minFreeMemory: 4 })',
      INVALID,
      /^minFreeMemory: 4 is not a size without its unit; use '4GiB'/,
    ],
    ["GPUOwner.acquire(1, { maxWait: '5' })", INVALID, /^maxWait: '5' is not a duration without its unit/],
    ['GPUOwner.acquire(1, { maxWait: -1 })', INVALID, /^maxWait: -1/],
    ['GPUOwner.acquire(1, { signal: {} })', INVALID, /^signal: an object is not an AbortSignal/],
    ['gpuOwner.getGPUs(null)', INVALID, /^options must be an object/],
    ["gpuOwner.findFreeGPUs('x')", INVALID, /^options must be an object/],
    ["gpuOwner.findFreeGPUsSync({ lockDirectory: 'locks' })", INVALID, /^lockDirectory: 'locks'/],
  ];

  interface Result {
    source: string;
    isOurs: boolean;
    code: string;
    message: string;
    leaked: string[];
  }
  const results = new Map<string, Result>();

  beforeAll(async () => {
    const program = join(import.meta.dirname, 'fixtures/wrong-calls.mjs');
    const calls = JSON.stringify(CASES.map(([source]) => source));
    const { stdout, stderr } = await machine.run([process.execPath, program, calls]);
    expect(stderr).toBe('');
    for (const line of stdout.trim().split('\n')) {
      const result = JSON.parse(line) as Result;
      results.set(result.source, result);
    }
  });

  test.each(CASES)('refuses %s', (source, code, message) => {
    const result = results.get(source) as Result;
    expect(result).toMatchObject({ code, isOurs: true, leaked: [] });
    expect(result.message).toMatch(message);
    expect(result.message.length).toBeLessThan(1_000);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    expect(result.message).not.toMatch(/[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]/);
  });

  test('accepts a right call after all these', () => {
    expect(results.get('a right one')?.code).toBe('4');
  });

  afterAll(expectNothingLeft);
});
