// Several jobs on one GPU, in whole processes.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { Claimants } from '../support/claimants.ts';
import { alice, endHolder, RUN, startHolder, UNTIL_CLOSED } from '../support/holders.ts';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  pause,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { directoryOf, fileOf, here, holdAs, NAMES, tryAs } from '../support/other-tools.ts';
import { timeoutMs, withTimeouts } from '../support/time.ts';
import { Waiters } from './waiters.ts';

const IS_SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const GIB = 1024 ** 3;
const claimant = join(import.meta.dirname, 'fixtures/share-claimant.mjs');
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

const share = (memory: string, ...options: string[]) =>
  startHolder(machine, ['--memory', memory, ...options]);

test('three shares fit on a GPU; a fourth and a whole claim are refused with the reason, and served afterwards', async () => {
  machine = new Machine(1);
  const holders = [await share('25GiB', '--name', 'first'), await share('25GiB'), await share('25GiB')];
  const [gpu] = await machine.status();
  expect(gpu).toMatchObject({ state: 'shared', lease: null });
  expect(gpu.shares.map(({ bytes }: { bytes: number }) => bytes)).toEqual([25, 25, 25].map((n) => n * GIB));
  expect(gpu.shares[0]).toMatchObject({ name: 'first', uid: process.getuid?.(), convention: 'gpu-owner' });
  const fourth = await machine.runCommand([...RUN, '--no-wait', '--memory', '25GiB', '--', 'true']);
  expect(fourth.code).toBe(75);
  expect(fourth.stderr).toMatch(/GPU 0: 4\.5 GiB of 79\.5 GiB are left \(--memory: 25 GiB\); 75 GiB of /);
  const whole = await machine.runCommand([...RUN, '--no-wait', '--', 'true']);
  expect(whole.code).toBe(75);
  expect(whole.stderr).toMatch(/GPU 0: 75 GiB of 79\.5 GiB leased in shares by \S+$/m);
  // The rest can be had.
  expect((await machine.runCommand([...RUN, '--no-wait', '--memory', '4GiB', '--', 'true'])).code).toBe(0);
  const waiting = finished(machine.startCommand([...RUN, '--', 'true']));
  for (const holder of holders) await endHolder(holder);
  expect((await waiting).code).toBe(0);
  expect(await machine.states()).toEqual(['free']);
});

test('while a request for a whole GPU is first, no share starts on the GPU that is kept for it, but on others', async () => {
  machine = new Machine(2);
  const waiters = new Waiters(machine);
  const [small, large] = [await share('10GiB'), await share('30GiB', '--devices', '1')];
  const whole = machine.startCommand([...RUN, ...UNTIL_CLOSED]);
  const started = output(whole, /^started/m);
  await waiters.untilWaiting(1);
  const refused = await machine.runCommand([
    ...RUN,
    '--no-wait',
    '--devices',
    '0',
    '--memory',
    '1GiB',
    '--',
    'true',
  ]);
  expect(refused.code).toBe(75);
  expect(refused.stderr).toMatch(
    /GPU 0: there is room, but \S+ \(pid .*is ahead in the wait queue, for a GPU since/,
  );
  // Best fit without the request would be GPU 1 as well, so a share as large as that GPU's room has to wait there.
  const beside = await share('40GiB');
  expect((await machine.status()).map(({ shares }) => shares.length)).toEqual([1, 2]);
  const waiting = machine.startCommand([...RUN, '--memory', '20GiB', ...UNTIL_CLOSED]);
  const besides = output(waiting, /^started/m);
  await waiters.untilWaiting(2);
  expect((await waiters.queue()).map(({ memory }) => memory)).toEqual([null, '20 GiB']);
  // The share is served where the whole claim isn't, and doesn't wait for that.
  await endHolder(beside);
  await besides;
  await waiters.untilWaiting(1);
  await endHolder(small);
  await started;
  expect(await machine.states()).toEqual(['leased', 'shared']);
  for (const holder of [large, whole, waiting]) await endHolder(holder);
});

test('shares count by their part for limits, and for the order of the queue', async () => {
  machine = new Machine(2);
  machine.configure(`limits: { users: { ${alice.uid}: { gpus: 0.75 } } }\n`);
  await startHolder(machine, ['--memory', '50%'], alice);
  const run = (memory: string) =>
    machine.runCommand([...RUN, '--no-wait', '--memory', memory, '--', 'true'], alice);
  expect((await run('20%')).code).toBe(0);
  const refused = await run('30%');
  expect(refused.code).toBe(75);
  expect(refused.stderr).toMatch(
    /GPU 1: free, but you have 0\.5 of the 0\.75 GPUs that \S+ may have at a time/,
  );
  expect((await run('80%')).stderr).toContain('may have 0.75 at a time here');
});

test('the command gets the size of its share in a variable', async () => {
  machine = new Machine(1);
  const shown = await machine.runCommand([...RUN, '--memory', '20GiB', '--', 'sh', '-c', 'env | sort']);
  expect(shown.stdout).toContain(`GPU_OWNER_MEMORY=${20 * GIB}\n`);
  expect(shown.stdout).toContain('XLA_PYTHON_CLIENT_MEM_FRACTION=0.25\n');
  expect(shown.stdout).toContain(`CUDA_VISIBLE_DEVICES=${uuidOf(0)}\n`);
  const own = { env: { XLA_PYTHON_CLIENT_MEM_FRACTION: '.1' } };
  const kept = await machine.runCommand([...RUN, '--memory', '20GiB', '--', 'env'], own);
  expect(kept.stdout).toContain('XLA_PYTHON_CLIENT_MEM_FRACTION=.1\n');
});

const CONTEXT = 416 * 1024 ** 2;
const occupy = (memory: string, gpu = '0') => [
  join(binaries(), 'gpu-owner-simulator'),
  'occupy',
  gpu,
  '--memory',
  memory,
];

test('processes of a share’s job do not make the GPU busy, others do; accepted ones and overuse take room', async () => {
  machine = new Machine(1);
  const holder = machine.startCommand([...RUN, '--memory', '20GiB', '--', ...occupy('7GiB')]);
  await output(holder, /ready/);
  const [gpu] = await machine.status();
  expect(gpu.shares).toMatchObject([{ bytes: 20 * GIB, usedBytes: 7 * GIB + CONTEXT }]);
  const claim = (memory: string, ...options: string[]) =>
    machine.runCommand([...RUN, '--no-wait', '--memory', memory, ...options, '--', 'true']);
  expect((await claim('59GiB')).code).toBe(0);
  const stranger = machine.start(occupy('10GiB'));
  await output(stranger, /ready/);
  const refused = await claim('30GiB');
  expect(refused.code).toBe(75);
  expect(refused.stderr).toContain(`GPU 0: busy: gpu-owner-simul (pid ${stranger.pid}`);
  expect((await claim('48GiB', '--allow-processes')).code).toBe(0);
  const tooMuch = await claim('50GiB', '--allow-processes');
  expect(tooMuch.stderr).toMatch(
    /49 GiB of 79\.5 GiB are left .*; 10\.5 GiB are used beyond what is leased; 20 GiB/,
  );
  stranger.kill('SIGKILL');
  await finished(stranger, 'exit');
  const greedy = machine.startCommand([...RUN, '--memory', '10GiB', '--', ...occupy('25GiB')]);
  await output(greedy, /ready/);
  expect((await claim('34GiB')).code).toBe(0);
  expect((await claim('35GiB')).stderr).toMatch(/34 GiB of 79\.5 GiB are left .*; 15\.5 GiB are used beyond/);
});

test('where processes are hidden, as in a container, memory decides', async () => {
  machine = new Machine(1);
  machine.set('gpu=0', 'hidden-processes=on');
  const holder = machine.startCommand([...RUN, '--memory', '20GiB', '--', ...occupy('7GiB')]);
  await output(holder, /ready/);
  expect((await machine.status())[0].shares).toMatchObject([{ usedBytes: null }]);
  const status = async () => (await machine.runCommand(['status'])).stdout.replace(/\s+/g, ' ');
  expect(await status()).toContain(
    "which process is whose can't be told here: other programs are noticed once",
  );
  const claim = () => machine.runCommand([...RUN, '--no-wait', '--memory', '10GiB', '--', 'true']);
  expect((await claim()).code).toBe(0);
  const stranger = machine.start(occupy('30GiB'));
  await output(stranger, /ready/);
  expect((await claim()).stderr).toMatch(/GPU 0: busy: 17\.8 GiB in use/);
});

test('a share in which a CUDA context has no room is refused with the number', async () => {
  machine = new Machine(1);
  const { code, stderr } = await machine.runCommand(['run', '--memory', '256MiB', '--', 'true']);
  expect(code).toBe(64);
  expect(stderr).toContain(
    '--memory: 256 MiB is less than a CUDA context alone takes on GPU 0, which is 417 MiB',
  );
  expect(await machine.states()).toEqual(['free']);
  expect((await machine.runCommand(['run', '--memory', '512MiB', '--', 'true'])).code).toBe(0);
});

const isolated = ['unshare', '--pid', '--fork', '--mount-proc'];
const isIsolable = spawnSync('unshare', [...isolated.slice(1), 'true']).status === 0;

test.each([
  { where: 'on the machine', prefix: [] },
  ...(isIsolable ? [{ where: 'as the first process of a container', prefix: isolated }] : []),
])(
  'the placeholder of a share makes way for processes of its own job, not for others: $where',
  async ({ prefix }) => {
    machine = new Machine(1);
    const script = `echo started; read -r line; exec ${occupy('7GiB').join(' ')}`;
    const run = [process.execPath, command, 'run', '--memory', '10GiB', '--', 'sh', '-c', script];
    const used = async () => {
      const [gpu] = await machine.status();
      return gpu.processes.map(({ usedBytes }: { usedBytes: number }) => usedBytes).sort();
    };
    const own = machine.start([...prefix, ...run]);
    await output(own, /started/);
    const other = machine.startCommand([...RUN, '--memory', '10GiB', '--', ...occupy('9GiB')]);
    await output(other, /ready/);
    const placeholder = CONTEXT + 1024 ** 2;
    expect(await used()).toEqual([placeholder, 9 * GIB + CONTEXT].sort());
    own.stdin?.write('\n');
    await expect.poll(used).toEqual([7 * GIB + CONTEXT, 9 * GIB + CONTEXT].sort());
  },
);

test('a job that uses more than its share is warned once, and ended only if the configuration says so', async () => {
  machine = new Machine(1);
  const env = withTimeouts({ usage: timeoutMs('usage', 300), grace: timeoutMs('grace', 300) });
  const words = [...RUN, '--memory', '10GiB', '--'];
  const fits = machine.startCommand([...words, ...occupy('5GiB')], { env });
  const greedy = machine.startCommand([...words, ...occupy('15GiB')], { env });
  const end = finished(greedy);
  const fitting = finished(fits);
  await output(greedy, /gpu-owner-simulator uses 15\.4 GiB: more than the 10 GiB that it has claimed/);
  machine.configure('shareOveruse: end\n');
  const ended = await finished(machine.startCommand([...words, ...occupy('30GiB')], { env }));
  expect(ended.code === 0 ? '' : ended.stderr).toMatch(
    /uses 30\.4 GiB: more than the 10 GiB .* get SIGTERM in .*, unless it uses less by then[\s\S]*has used more than the 10 GiB/,
  );
  for (const child of [fits, greedy]) child.kill('SIGTERM');
  expect((await end).stderr.match(/more than the 10 GiB/g)?.length).toBe(1);
  expect((await fitting).stderr).not.toContain('more than');
});

test('metrics have each share, and what it uses', async () => {
  machine = new Machine(1);
  const holders = ['5GiB', '15GiB'].map((memory) =>
    machine.startCommand([...RUN, '--memory', '10GiB', '--', ...occupy(memory)]),
  );
  for (const holder of holders) await output(holder, /ready/);
  const { stdout } = await machine.runCommand(['metrics']);
  const values = (name: string) =>
    [...stdout.matchAll(new RegExp(`^gpu_owner_${name}\\{.*pid="\\d+".*\\} (.*)$`, 'gm'))]
      .map(([, value]) => Number(value))
      .sort((a, b) => a - b);
  expect(values('share_bytes')).toEqual([10 * GIB, 10 * GIB]);
  expect(values('share_used_bytes')).toEqual([5, 15].map((n) => n * GIB + CONTEXT));
});

test('a sweep starts as many workers as there is room for shares, each with a name of its own', async () => {
  machine = new Machine(2);
  const project = join(machine.directory, 'project');
  mkdirSync(project);
  const words = ['exp', 'run', '--gpus', '2', '--memory', '30GiB', '--placeholder', 'none'];
  const task = ['sh', '-c', 'test $GPU_OWNER_MEMORY = 32212254720 && sleep 0.2'];
  const { code, stdout } = await machine.runCommand([...words, '--grid', 'i=1..8', '--', ...task], {
    cwd: project,
  });
  expect(code, stdout).toBe(0);
  expect(stdout).toContain('8 tasks: 8 completed');
  const logs = readdirSync(join(project, 'results_grid')).filter((name) => name.endsWith('.log'));
  expect(logs.sort()).toEqual(['gpu0.1', 'gpu0.2', 'gpu1.1', 'gpu1.2'].map((name) => `worker_${name}.log`));
});

test('MIG instances are shared in the same way', async () => {
  machine = new Machine('a100x4-mig');
  const holder = await share('3GiB', '--devices', '0:3');
  const whole = await machine.runCommand([...RUN, '--no-wait', '--devices', '0:3', '--', 'true']);
  expect(whole.stderr).toMatch(/GPU 0:3: 3 GiB of [\d.]+ GiB of the MIG instance leased in shares/);
  // The instance has the least room of all GPUs and instances.
  await share('1GiB');
  const rows = await machine.status();
  const shared = rows.filter(({ state }) => state === 'shared');
  expect(shared.map(({ index, instance, shares }) => [index, instance, shares.length])).toEqual([[0, 3, 2]]);
  // Several shares are of whole GPUs, or of instances.
  const found = await machine.runCommand(['find', '--memory', '1GiB', '-n', '2', '--json']);
  expect(JSON.parse(found.stdout).map(({ instance }: { instance: unknown }) => instance)).toEqual([
    null,
    null,
  ]);
  await endHolder(holder);
});

test('a job gives shares of its GPU to its steps, and a share’s job has its share, or parts of it', async () => {
  machine = new Machine(2);
  const inner = (...words: string[]) => [process.execPath, command, ...RUN, ...words];
  const tell = ['sh', '-c', 'echo $GPU_OWNER_MEMORY $CUDA_VISIBLE_DEVICES'];
  const step = (...options: string[]) => inner('--no-wait', ...options, '--', ...tell);
  const quoted = (words: string[]) => words.map((word) => `'${word}'`).join(' ');
  // While a step holds 60 %, another gets the rest, and no more. The machine's other GPU isn't theirs.
  const script = (rest: string, more: string) =>
    `${quoted(inner('--memory', '60%', '--', 'sh', '-c', 'echo ready; exec cat'))} < fifo > ready & exec 3> fifo; read _ < ready;
     ${quoted(step('--memory', rest))}; ${quoted(step('--memory', more))}; ${quoted(step())}; exec 3>&-; wait; ${quoted(step())}`;
  const job = async (options: string[], rest: string, more: string) => {
    const words = ['sh', '-c', `rm -f fifo ready; mkfifo fifo ready; ${script(rest, more)}`];
    const { stdout, stderr } = await machine.runCommand([...RUN, ...options, '--', ...words], here(machine));
    return { stdout, refused: stderr.match(/1 GPU asked for, none is free/g)?.length };
  };
  expect(await job([], '31GiB', '33GiB')).toEqual({
    stdout: `${31 * GIB} ${uuidOf(0)}\n${uuidOf(0)}\n`,
    refused: 2,
  });
  const whole = `${30 * GIB} ${uuidOf(0)}\n`;
  expect(await job(['--memory', '30GiB'], '12GiB', '13GiB')).toEqual({
    stdout: `${12 * GIB} ${uuidOf(0)}\n${whole}`,
    refused: 2,
  });
});

test.each(NAMES)('%s: as long as one share is held, the tool sees the GPU as taken', async (name) => {
  machine = new Machine(1);
  directoryOf(machine, name);
  // PID files are in the working directory, which is one user's.
  const users =
    twoUsers && name !== 'pid-files' ? [here(machine), { ...here(machine), ...alice }] : [here(machine)];
  const start = (i: number) => startHolder(machine, ['--memory', '10GiB'], users[i % users.length]);
  let last = await start(0);
  let isOver = false;
  const seen: string[] = [];
  const probing = (async () => {
    while (!isOver) seen.push(await tryAs(machine, name, 0, here(machine)));
  })();
  for (let i = 1; i <= 4; i++) {
    const next = await start(i);
    expect((await machine.runCommand(['status', '--json'], here(machine))).stdout).toContain('"shared"');
    await endHolder(last);
    last = next;
  }
  isOver = true;
  await probing;
  expect(new Set(seen.map((text) => text.trim()))).toEqual(new Set(['refused']));
  await endHolder(last);
  const holder = await holdAs(machine, name, here(machine));
  const refused = await machine.runCommand(
    [...RUN, '--no-wait', '--memory', '10GiB', '--', 'true'],
    here(machine),
  );
  expect(refused.stderr).toContain(`(${name}, pid ${holder.pid}`);
});

test.each(['gpu_lock', 'pid-files'] as const)(
  '%s: the file of shares that were killed is no longer in the way, and the next ones make it anew',
  async (name) => {
    machine = new Machine(1);
    directoryOf(machine, name);
    const script = machine.script(
      `const owner = new GPUOwner({ memory: '10GiB', placeholder: 'none' }); console.log('started'); setTimeout(() => {}, 60_000)`,
    );
    for (let i = 0; i < 2; i++) {
      const owners = [0, 1].map(() =>
        machine.start([process.execPath, '--input-type=module', '-e', script], here(machine)),
      );
      for (const owner of owners) await output(owner, /started/);
      expect((await tryAs(machine, name, 0, here(machine))).trim()).toBe('refused');
      for (const owner of owners) owner.kill('SIGKILL');
      for (const owner of owners) await finished(owner, 'exit');
      expect(existsSync(fileOf(machine, name))).toBe(true);
    }
    const whole = await machine.runCommand([...RUN, '--', 'true'], here(machine));
    expect(whole).toMatchObject({ code: 0, stderr: '' });
    expect(existsSync(fileOf(machine, name))).toBe(false);
  },
);

/** The long form ends after so many claims, or these seconds. */
const MAX_CLAIMS = 200_000;
const SECONDS = Number(process.env.GPU_OWNER_TEST_SECONDS ?? (IS_SOAK ? 3_300 : 3));
/** Between two kills or stops. */
const TROUBLE_MS = 400;
const CLAIMANTS = 8;

test(`shares and whole GPUs are claimed at once${twoUsers ? ' by two users' : ''}, with kills and stops: no GPU gives more than it has`, {
  timeout: (SECONDS + 120) * 1000,
}, async () => {
  machine = new Machine('a100x4-mig');
  const claimants = new Claimants(machine);
  for (let i = 0; i < CLAIMANTS; i++) {
    claimants.add(() =>
      machine.start([process.execPath, claimant, claimants.witness.path, String(SECONDS)], {
        umask: i % 3 === 0 ? '077' : '022',
        env: { GPU_OWNER_CONVENTIONS: 'none' },
        ...(twoUsers && i % 2 === 1 ? { uid: NOBODY } : {}),
      }),
    );
  }
  const end = performance.now() + SECONDS * 1000;
  while (performance.now() < end && claimants.printed * 10 < MAX_CLAIMS) {
    await pause(TROUBLE_MS);
    claimants.trouble();
  }
  const { holds, errors } = await claimants.end();
  console.log(`${holds} leases and shares, none of them over`);
  expect(errors).toEqual([]);
  expect(holds).toBeGreaterThan(SECONDS);
  // Killed processes hold no share any more.
  const isLeft = async () =>
    (await machine.status()).some(({ state, migEnabled }) => migEnabled !== true && state !== 'free');
  await expect.poll(isLeft, { timeout: 20_000 }).toBe(false);
});
