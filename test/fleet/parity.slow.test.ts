// One command on leased GPUs, in every way to start it: what one of them can, all can. Pages tell why one is missing from a row.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { command, type Machine, python, root, until } from '../support/machine.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const GPUS = 8;
const LIMIT_S = 600;
const reason = whyNoSSHD();

/** Options as the command has them, without their dashes. */
type Options = Readonly<Record<string, string>>;
interface End {
  code: number | null;
  output: string;
}
const WAYS = ['run', 'submit', 'part', 'python', 'on', 'task'] as const;
type Way = (typeof WAYS)[number];
const JOBS: readonly Way[] = ['run', 'submit', 'part', 'python', 'on'];
const all = <T>(value: T, ways: readonly Way[] = WAYS) =>
  Object.fromEntries(ways.map((way) => [way, value])) as Partial<Record<Way, T>>;

describe.skipIf(reason !== null)(`a command${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  /** Here, and the host of --on. */
  let machine: Machine;
  let place: string;
  let tasks = 0;

  beforeAll(async () => {
    hosts = await Hosts.start();
    machine = hosts.add('here', { gpus: GPUS });
    place = join(machine.directory, 'project');
    mkdirSync(place);
  });
  afterAll(() => hosts?.close());
  beforeEach(() => configure(''));

  /** The user's configuration. */
  function configure(text: string): void {
    const directory = join(machine.directory, 'no-configuration/gpu-owner');
    mkdirSync(directory, { recursive: true });
    writeFileSync(join(directory, 'config.yaml'), text);
  }

  const words = (options: Options) => Object.entries(options).map(([name, value]) => `--${name}=${value}`);
  const starting = () => ({
    cwd: place,
    env: { PARITY: 'mine', GPU_OWNER_COMMAND: `${process.execPath} ${command}` },
  });
  const ours = (...args: string[]) => machine.runCommand(args, starting());

  async function submitted(options: Options, script: readonly string[], part = ''): Promise<End> {
    const { code, stdout } = await ours('submit', ...words(options), '--', ...script);
    if (code !== 0) return { code, output: '' };
    const job = stdout.trim() + part;
    const ended = await ours('wait', job);
    return { code: ended.code, output: (await ours('logs', job)).stdout };
  }

  const START: Record<Way, (options: Options, script: readonly string[]) => Promise<End>> = {
    run: async (options, script) => {
      const { code, stdout } = await ours('run', ...words(options), '--', ...script);
      return { code, output: stdout };
    },
    submit: (options, script) => submitted(options, script),
    part: (options, script) => submitted({ ...options, array: '5' }, script, '_5'),
    python: async ({ for: limit, ...options }, script) => {
      const given = { ...options, ...(limit === undefined ? {} : { time_limit: limit }) };
      const program = `import gpu_owner, json, sys
job = gpu_owner.submit(sys.argv[2:], **json.loads(sys.argv[1]))
code = job.wait()
print(job.log(), end="")
sys.exit(code)`;
      const env = { ...starting().env, PYTHONPATH: join(root, 'python') };
      const started = [python, '-c', program, JSON.stringify(given), ...script];
      const { code, stdout } = await machine.run(started, { cwd: place, env });
      return { code, output: stdout };
    },
    on: async (options, script) => {
      const args = ['run', '--on=here', `--chdir=${place}`, '--env=PARITY=mine', ...words(options)];
      const { code, stdout } = await hosts.run([...args, '--', ...script]);
      return { code, output: stdout };
    },
    task: async ({ name: _, ...options }, script) => {
      const task = String(tasks++);
      const sweep = ['--gpus=1', '--retries=0', `--grid=n=${task}`, `--phase=p${task}`];
      const { code } = await ours('exp', 'run', ...sweep, ...words(options), '--', ...script);
      const { failures } = JSON.parse((await ours('exp', 'status', '--json')).stdout);
      const failed = failures.find((each: { name: string }) => each.name.startsWith(`p${task}_`));
      const error = failed?.error ?? '';
      const [, exit, signal] = /^exit code (\d+)|^killed by SIG(KILL)|^the time limit/.exec(error) ?? [];
      const ended = exit === undefined ? (signal === undefined ? 124 : 137) : Number(exit);
      const logs = failed === undefined ? '' : (await ours('exp', 'logs', failed.name)).stdout;
      return { code: code === 0 ? 0 : ended, output: logs };
    },
  };

  /** Starts a script in several ways at once. @param lines of the script */
  async function inAllWays(
    lines: readonly string[],
    options: Options = {},
    ways: readonly Way[] = WAYS,
  ): Promise<Partial<Record<Way, End>>> {
    const path = join(place, 'script.sh');
    writeFileSync(path, lines.join('\n'));
    const ends = ways.map(async (way) => {
      const named = way === 'task' ? options : { ...options, name: way };
      return [way, await START[way](named, ['sh', path])] as const;
    });
    return Object.fromEntries(await Promise.all(ends));
  }

  const codesOf = (ends: Partial<Record<Way, End>>) =>
    Object.fromEntries(Object.entries(ends).map(([way, { code }]) => [way, code]));

  /** Lines of the ledger of usage since `begin`, by the name of the job. */
  function ledger(begin: number): Record<string, unknown> {
    const directory = join(machine.lockDirectory, 'usage');
    const lines = readdirSync(directory)
      .flatMap((name) => readFileSync(join(directory, name), 'utf8').trim().split('\n'))
      .map((line) => JSON.parse(line))
      .filter(({ since }) => since >= begin);
    return Object.fromEntries(
      lines.map(({ name, program, gpus, exit, ended }) => [
        name ?? program,
        { gpus: gpus.length, exit, ended },
      ]),
    );
  }

  test('has its GPU and its environment, ends with its exit code, and has a line in the ledger', async () => {
    const begin = Date.now();
    const script = [
      'echo "$CUDA_VISIBLE_DEVICES" | grep -c "^GPU-[-0-9a-f]*$"',
      'echo "${GPU_OWNER_JOB:+job} $GPU_OWNER_MEMORY $PARITY"',
      'exit 7',
    ];
    const ends = await inAllWays(script, { memory: '1GiB' });
    expect(codesOf(ends)).toEqual(all(7));
    for (const [way, { output }] of Object.entries(ends))
      expect(output, way).toContain(`1\njob ${2 ** 30} mine\n`);
    // A worker keeps its GPUs for the next task: its line has no exit code.
    const worker = { 'gpu-owner exp run': { gpus: 1, exit: null, ended: true } };
    expect(ledger(begin)).toEqual({ ...all({ gpus: 1, exit: 7, ended: true }, JOBS), ...worker });
  });

  test('that a signal has ended says by which', async () => {
    expect(codesOf(await inAllWays(['kill -9 $$']))).toEqual(all(137));
  });

  test('ends at the limit of the configuration with 124', async () => {
    configure('limits: { for: 1s }');
    expect(codesOf(await inAllWays(['sleep 600']))).toEqual(all(124));
  });

  test('ends at its own limit, with a signal before it', async () => {
    const script = ['trap "exit 9" USR1', 'while :; do sleep 0.05; done'];
    const limit = { for: '2s', signal: 'USR1@1900ms' };
    const [warned, ended] = await Promise.all([
      inAllWays(script, limit, JOBS),
      START.run({ for: '1s' }, ['sleep', '600']),
    ]);
    expect(codesOf(warned)).toEqual(all(9, JOBS));
    expect(ended.code).toBe(124);
  });

  test.skipIf(process.getuid?.() !== 0)(
    'runs beside a booking that begins after its limit, and says until when',
    async () => {
      const book = await ours('book', `-n${GPUS}`, '--from=+30m', '--for=1h', '--user=nobody');
      expect(book.code).toBe(0);
      const refused = await inAllWays(['true'], { wait: '100ms' }, JOBS);
      expect(codesOf(refused)).toEqual(all(75, JOBS));
      configure(`limits: { for: ${LIMIT_S}s }`);
      const begin = Date.now();
      // A worker of a sweep, which has no end, would wait: docs/fairness.md
      const script = ['echo begun >> begun', 'until [ -e go ]; do sleep 0.05; done'];
      const ends = inAllWays(script, {}, JOBS);
      await until(
        () =>
          readFileSync(join(place, 'begun'), { encoding: 'utf8', flag: 'a+' }).split('\n').length >
          JOBS.length,
      );
      const leases = (await machine.status()).flatMap(({ lease }) => lease ?? []);
      const limited = leases.filter(({ until: end }) => {
        const left = Date.parse(end) - begin;
        return left >= LIMIT_S * 1000 && Date.parse(end) <= Date.now() + LIMIT_S * 1000;
      });
      expect(limited.map(({ name }) => name).sort()).toEqual(JOBS.toSorted());
      writeFileSync(join(place, 'go'), '');
      expect(codesOf(await ends)).toEqual(all(0, JOBS));
      await ours('bookings', 'cancel', book.stdout.trim());
    },
  );
});
