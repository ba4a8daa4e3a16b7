// Preemptible jobs give way, in whole processes.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Jobs } from '../jobs/background.ts';
import { alice, bob, endHolder as end, RUN, startHolder, UNTIL_CLOSED } from '../support/holders.ts';
import { finished, Machine, output, python, until, uuidOf, whyNotNobody } from '../support/machine.ts';
import { sendSignal, signalAll } from '../support/processes.ts';
import { timeoutMs, withTimeouts } from '../support/time.ts';
import { Waiters } from './waiters.ts';

const noSecondUser = whyNotNobody();
const PREEMPTIBLE = [...RUN, '--preemptible'];
/** Says so, and ignores SIGTERM. */
const STUBBORN = [
  '--',
  python,
  '-uc',
  'import signal,sys; signal.signal(15, lambda *_: print("told")); print("started"); [signal.pause() for _ in iter(int, 1)]',
];

let machine: Machine;
let jobs: Jobs;
let waiters: Waiters;
beforeEach(() => {
  machine = new Machine(4);
  jobs = new Jobs(machine);
  waiters = new Waiters(machine);
});
afterEach(async () => {
  await jobs.end();
  await machine.close();
});

async function started(words: string[], starting = {}): Promise<ChildProcess & { said: () => string }> {
  const child = machine.startCommand(words, starting);
  let said = '';
  child.stderr?.on('data', (text) => (said += text));
  child.stdin?.on('error', () => {});
  await output(child, /^started/m);
  return Object.assign(child, { said: () => said });
}

const job = async (id: number) => (await jobs.list()).find((each) => each.id === id);

describe('run --preemptible', () => {
  test('ends with 143 and says why, and the request that needed the GPU gets it within a second', async () => {
    const preempted = await started([...PREEMPTIBLE, '-n', '4', ...UNTIL_CLOSED]);
    const [{ lease, reason }] = await machine.status();
    expect({ lease, reason }).toMatchObject({
      lease: { preemptible: true },
      reason: expect.stringContaining(', preemptible ('),
    });
    const ended = finished(preempted, 'exit');
    const since = Date.now();
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    expect((await machine.status()).map((gpu) => gpu.lease?.preemptible)).toEqual(Array(4).fill(undefined));
    expect(Date.now() - since).toBeLessThan(process.env.CI ? 25_000 : 5_000);
    expect((await ended).code).toBe(143);
    expect(preempted.said()).toMatch(
      /preempted: another request needs GPU 0, 1, 2, 3\. sh and all its processes get SIGTERM, and after 30 s SIGKILL\n/,
    );
    await end(other);
  });

  test('has the grace to end, and SIGKILL after it', async () => {
    const preempted = await started([...PREEMPTIBLE, '-n', '4', '--grace', '1500ms', ...STUBBORN]);
    const ended = finished(preempted, 'exit');
    const told = output(preempted, /told/);
    const since = Date.now();
    const waiting = machine.startCommand([...RUN, ...UNTIL_CLOSED]);
    const got = output(waiting, /^started/m);
    await told;
    expect((await ended).code).toBe(143);
    expect(Date.now() - since).toBeGreaterThanOrEqual(1_500);
    await got;
    await end(waiting);
  });

  test('gets the signal that it wants, alone', async () => {
    const words = ['--', 'sh', '-c', 'sleep 600 & trap "kill $!; exit 0" USR1; echo started; wait'];
    const preempted = await started([...PREEMPTIBLE, '-n', '4', '--signal', 'USR1', ...words]);
    const ended = finished(preempted, 'exit');
    await end(await started([...RUN, ...UNTIL_CLOSED]));
    // The command has ended by itself in time, with exit code 0.
    expect((await ended).code).toBe(0);
    expect(preempted.said()).toContain('sh gets SIGUSR1, and after 30 s all its processes get SIGKILL');
  });

  test('uses a GPU that is kept for a request which waits for another one', async () => {
    const holder = await started([...RUN, '-n', '3', ...UNTIL_CLOSED]);
    const waiting = machine.startCommand([...RUN, '-n', '4', ...UNTIL_CLOSED]);
    const got = output(waiting, /^started/m);
    await waiters.untilWaiting(1);
    expect((await machine.runCommand([...RUN, '--no-wait', '--', 'true'])).code).toBe(75);
    const preemptible = await started([...PREEMPTIBLE, '--no-wait', ...UNTIL_CLOSED]);
    const next = machine.startCommand([...PREEMPTIBLE, ...UNTIL_CLOSED]);
    const gotNext = output(next, /^started/m);
    await waiters.untilWaiting(2);
    await end(preemptible);
    await gotNext;
    const ended = finished(next, 'exit');
    await end(holder);
    expect((await ended).code).toBe(143);
    await got;
    await end(waiting);
  });

  test('is started anew with --requeue, on the same terminal', async () => {
    const words = ['--', 'sh', '-c', 'echo started $GPU_OWNER_RESTART; exec cat'];
    const child = await started([...PREEMPTIBLE, '--requeue', '-n', '4', ...words]);
    const again = output(child, /^started 1/m);
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    expect(child.exitCode).toBeNull();
    await end(other);
    await again;
    const ended = finished(child, 'exit');
    child.stdin?.end();
    expect((await ended).code).toBe(0);
  });

  test('contradictions are refused', async () => {
    const mistakes = [
      [['--urgent', '--preemptible'], '--urgent and --preemptible contradict each other'],
      [['--grace', '5s'], '--grace needs --preemptible'],
      [['--requeue'], '--requeue needs --preemptible'],
      [['--preemptible', '--signal', 'KILL'], 'no program can catch KILL'],
      [['--signal', 'USR1'], '--signal needs a time limit'],
    ] as const;
    const results = await machine.runCommands(mistakes.map(([words]) => [...RUN, ...words, '--', 'true']));
    for (const [at, [, why]] of mistakes.entries())
      expect(results[at]).toMatchObject({ code: 64, stderr: expect.stringContaining(why) });
    machine.configure('preemptionGrace: 10s\n');
    const { code, stderr } = await jobs.run([...PREEMPTIBLE, '--grace', '11s', '--', 'true']);
    expect({ code, stderr }).toEqual({ code: 64, stderr: expect.stringContaining('more than the 10 s') });
  });
});

describe('submit --preemptible', () => {
  const file = (name: string) => join(machine.directory, name);
  /** Runs until the file is there; notes its starts and its environment. */
  const program = (name: string) => [
    '--',
    'sh',
    '-c',
    `echo start $GPU_OWNER_RESTART $$ >> ${file(`${name}.starts`)}; while ! [ -e ${file(name)} ]; do sleep 0.05; done`,
  ];
  const starts = (name: string) =>
    readFileSync(file(`${name}.starts`), 'latin1')
      .trim()
      .split('\n');

  test('waits again under its number, and goes on with the next start', async () => {
    const id = await jobs.submit(['--preemptible', '-n', '4', '--no-wait', ...program('go')]);
    await until(async () => (await job(id)).state === 'running');
    const waiting = jobs.run(['wait', String(id)]);
    const follower = await jobs.submit(['--after-ok', String(id), '--', 'true']);
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    await until(async () => (await job(id)).position === 1);
    expect(await job(id)).toMatchObject({
      state: 'waiting',
      preempted: 1,
      gpus: [],
      exitCode: null,
      ended: null,
    });
    expect((await job(follower)).state).toBe('waiting');
    expect((await jobs.run(['jobs'])).stdout).toMatch(/preempted once, ran \d+ (s|ms)/);
    await end(other);
    await until(async () => (await job(id)).state === 'running');
    await until(() => starts('go').length === 2);
    writeFileSync(file('go'), '');
    expect((await waiting).code).toBe(0);
    expect(starts('go').map((line) => line.split(' ')[1])).toEqual(['0', '1']);
    expect(await job(id)).toMatchObject({ state: 'completed', exitCode: 0, preempted: 1 });
    await until(async () => (await job(follower)).state === 'completed');
  });

  test('is not completed by a command that ends in its grace, while its work goes on', async () => {
    const work = `setsid sh -c 'trap "" TERM; echo start >> ${file('work')}; until [ -e ${file('go')} ]; do sleep 0.05; done' &`;
    const id = await jobs.submit([
      '--preemptible',
      '-n',
      '4',
      '--grace',
      '1s',
      '--signal',
      'USR1',
      '--',
      'sh',
      '-c',
      `${work} trap "exit 0" USR1; while :; do sleep 0.05; done`,
    ]);
    const begun = () =>
      existsSync(file('work')) ? readFileSync(file('work'), 'latin1').split('\n').length - 1 : 0;
    await until(() => begun() === 1);
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    await until(async () => (await job(id)).state === 'waiting');
    expect(await job(id)).toMatchObject({ preempted: 1, exitCode: null });
    expect((await jobs.run(['logs', String(id)])).stdout).toMatch(/preempted: another request need/);
    await end(other);
    await until(() => begun() === 2);
    writeFileSync(file('go'), '');
    expect((await jobs.run(['cancel', '--grace', '0', String(id)])).code).toBe(0);
  });

  test('is cancelled while it gives way, and while it waits again', async () => {
    const stubborn = await jobs.submit(['--preemptible', '-n', '4', '--output', file('out'), ...STUBBORN]);
    await until(() => readFileSync(file('out'), 'latin1').includes('started'));
    const other = machine.startCommand([...RUN, ...UNTIL_CLOSED]);
    const got = output(other, /^started/m);
    await until(() => readFileSync(file('out'), 'latin1').includes('told'));
    expect((await jobs.run(['cancel', '--grace', '0', String(stubborn)])).code).toBe(0);
    await got;
    expect((await job(stubborn)).state).toBe('cancelled');
    await end(other);
    const id = await jobs.submit(['--preemptible', '-n', '4', ...program('never')]);
    await until(async () => (await job(id)).state === 'running');
    const second = await started([...RUN, ...UNTIL_CLOSED]);
    await until(async () => (await job(id)).state === 'waiting');
    expect((await jobs.run(['cancel', String(id)])).code).toBe(0);
    expect((await job(id)).state).toBe('cancelled');
    await end(second);
  });

  test('is started anew also where its keeper is killed meanwhile', async () => {
    const id = await jobs.submit([
      '--preemptible',
      '-n',
      '4',
      '--output',
      file('out'),
      '--grace',
      '1s',
      ...STUBBORN,
    ]);
    await until(() => readFileSync(file('out'), 'latin1').includes('started'));
    const other = machine.startCommand([...RUN, ...UNTIL_CLOSED]);
    const got = output(other, /^started/m);
    await until(() => readFileSync(file('out'), 'latin1').includes('told'));
    const path = join(jobs.directoryOf(id), 'job');
    const { keeper: pid } = JSON.parse(readFileSync(path, 'latin1').slice(4096, 4608).trim());
    sendSignal(pid, 'SIGKILL');
    await got;
    await until(async () => (await job(id)).state === 'waiting');
    await end(other);
    await until(() => (readFileSync(file('out'), 'latin1').match(/^started$/gm) ?? []).length === 2);
    await until(async () => (await job(id)).state === 'running');
    expect(await job(id)).toMatchObject({ preempted: 1 });
    expect((await jobs.run(['cancel', '--grace', '0', String(id)])).code).toBe(0);
  });
});

describe('exp run --preemptible', () => {
  const path = (name: string) => join(machine.directory, name);
  const starts = () =>
    existsSync(path('starts')) ? readFileSync(path('starts'), 'latin1').trim().split('\n') : [];
  /** Notes its start, and runs until the file 'go' is there. @param before what the shell runs first */
  const sweep = (before: string) => {
    mkdirSync(path('project'));
    const note = `echo $(grep -o '"start": *[0-9]*' $GPU_OWNER_TASK) >> ${path('starts')}`;
    const script = `${before}; ${note}; while ! [ -e ${path('go')} ]; do sleep 0.05; done`;
    const gpus = ['--preemptible', '--gpus', '4', '--gpus-per-task', '4'];
    const words = ['exp', 'run', '--yes', ...gpus, '--grid', 'seed=1', '--shell', '--', script];
    return finished(machine.startCommand(words, { cwd: path('project') }));
  };
  const succeeds = async (ended: ReturnType<typeof sweep>) => {
    const { code, stderr } = await ended;
    expect({ code, stderr: code === 0 ? '' : stderr }).toEqual({ code: 0, stderr: '' });
  };

  test('gives its task back without a start, also after half a result, and goes on when the GPUs are free again', async () => {
    const ended = sweep(`trap 'printf "\\173" > $GPU_OWNER_RESULT; exit 0' TERM`);
    await until(() => starts().length === 1);
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    await end(other);
    await until(() => starts().length === 2);
    writeFileSync(path('go'), '');
    await succeeds(ended);
    expect(new Set(starts()).size).toBe(1);
  });

  test('has completed a task that ends in its grace with exit code 0', async () => {
    const ended = sweep(`trap 'printf "\\173\\"loss\\": 1\\175" > $GPU_OWNER_RESULT; exit 0' TERM`);
    await until(() => starts().length === 1);
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    await succeeds(ended);
    await end(other);
    expect(starts()).toHaveLength(1);
    const table = await machine.runCommand(['exp', 'export'], { cwd: path('project') });
    expect(table.stdout).toMatch(/,loss\n.*,1\n$/);
  });
});

describe.skipIf(noSecondUser !== null)(noSecondUser ?? 'two users', () => {
  test('preemptible GPUs don’t count for limits', async () => {
    machine.configure('limits: { gpus: 1 }\n');
    const night = await started([...PREEMPTIBLE, '-n', '3', ...UNTIL_CLOSED], alice);
    const day = await started([...RUN, ...UNTIL_CLOSED], alice);
    expect((await jobs.run([...RUN, '--no-wait', '--', 'true'])).code).toBe(75);
    for (const child of [night, day]) await end(child);
  });

  test('a record that says falsely that its lease is preemptible protects no other lease', async () => {
    const others = await startHolder(machine, ['-n', '2', '--devices', '2-3']);
    const preemptible = await started([...PREEMPTIBLE, '--devices', '0', ...UNTIL_CLOSED], alice);
    const forger = await startHolder(machine, ['--devices', '1'], bob);
    const path = join(machine.lockDirectory, `${uuidOf(1)}.lease`);
    const record = JSON.parse(readFileSync(path, 'latin1').replaceAll('\0', ' ').trim());
    const forged = JSON.stringify({ ...record, preemptible: true, givesWay: true }).padEnd(2_000);
    writeFileSync(path, forged, { flag: 'r+' });
    // Nor does it take a record that says so, as any user can write it.
    writeFileSync(join(machine.lockDirectory, `${uuidOf(0)}.lease`), 'x'.padEnd(4_096), { flag: 'r+' });
    const ended = finished(preemptible, 'exit');
    const other = await started([...RUN, ...UNTIL_CLOSED]);
    expect((await ended).code).toBe(143);
    for (const child of [other, forger, others]) await end(child);
  });

  test('a forged notice or request ends nothing', async () => {
    const preemptible = await started([...PREEMPTIBLE, '-n', '4', ...UNTIL_CLOSED]);
    const lease = JSON.parse(
      readFileSync(join(machine.lockDirectory, `${uuidOf(0)}.lease`), 'latin1').trim(),
    );
    const queue = join(machine.lockDirectory, 'line.lock');
    const notice = join(machine.lockDirectory, 'preemption.notice');
    const forge = (order: string, isLocked: boolean, isAlive: boolean) => {
      const record = {
        order: `${order} ${'0'.repeat(16)} ${'0'.repeat(16)} ${'0'.repeat(16)} 0000000000`,
        user: 'x',
        boot: 'x',
        place: 0,
        count: 1,
        scope: null,
        preempts: [lease.generation],
        uuids: [lease.gpus[0].uuid],
      };
      const code = `import fcntl,struct,time,sys,json
queue = open(${JSON.stringify(queue)}, 'r+b', buffering=0)
if ${isLocked ? 1 : 0}: fcntl.fcntl(queue, 37, struct.pack('hhqqi4x', 1, 0, 0, 1, 0))
queue.write(json.dumps(json.loads(${JSON.stringify(JSON.stringify(record))}), separators=(',', ':')).encode().ljust(4064))
queue.write(str(${isAlive ? 'int(time.monotonic() * 1000)' : '0'}).encode().ljust(31) + b'\\n')
open(${JSON.stringify(notice)}, 'r+b', buffering=0).write(b'\\n')
time.sleep(0.8)`;
      return machine.run([python, '-c', code], alice);
    };
    writeFileSync(queue, ''); // as after the first wait
    chmodSync(queue, 0o666);
    for (const [order, isLocked, isAlive] of [
      ['1', false, true],
      ['1', true, false],
      ['2', true, true],
    ] as const) {
      const { stderr, code } = await forge(order, isLocked, isAlive);
      expect({ stderr, code }).toEqual({ stderr: '', code: 0 });
      expect(preemptible.exitCode).toBeNull();
    }
    // A request that lives and isn't preemptible counts: it could ask for all GPUs without a forgery.
    const end = finished(preemptible, 'exit');
    await forge('1', true, true);
    expect((await end).code).toBe(143);
  });
});

describe.skipIf(noSecondUser !== null)(
  `a lease that doesn't give way: ${noSecondUser ?? 'three users'}`,
  () => {
    const REQUEST = [...RUN, '--devices', '0-1', '--wait=60s', '--', 'true'];
    const carol = { uid: alice.uid - 2, umask: '077' };
    const lease = (gpu: number) =>
      JSON.parse(readFileSync(join(machine.lockDirectory, `${uuidOf(gpu)}.lease`), 'latin1').trim());
    /** Two leases that are preemptible, of bob on GPU 0 and the younger one of alice on GPU 1. */
    const two = async () => {
      const options = ['--preemptible', '--grace', '300ms', '--devices'];
      const honest = await startHolder(machine, [...options, '0'], bob);
      // A command whose input is closed with its keeper would end.
      const words = [...RUN, ...options, '1', '--', 'sh', '-c', 'trap "" HUP; echo started; exec sleep 600'];
      const stuck = machine.startCommand(words, alice);
      await output(stuck, /^started/m);
      await until(() => lease(1).keeper !== undefined);
      return { honest, stuck, pids: [stuck.pid as number, lease(1).keeper], command: lease(1).pid as number };
    };
    test('is followed by the next youngest where its keepers are killed', async () => {
      machine.configure('preemptionGrace: 300ms\n');
      const { honest, pids, command } = await two();
      const ended = finished(honest, 'exit');
      signalAll(pids, 'SIGSTOP'); // else the one that is left ends the command
      signalAll(pids, 'SIGKILL');
      // Each look of the request is another process.
      const env = withTimeouts({ handoverAtFront: timeoutMs('handoverAtFront', 100) });
      const { code, stderr } = await machine.runCommand(REQUEST, { ...carol, env });
      expect({ code, stderr: code === 0 ? '' : stderr }).toEqual({ code: 0, stderr: '' });
      expect((await ended).code).toBe(143);
      signalAll([...pids, command], 'SIGKILL');
    });
  },
);
