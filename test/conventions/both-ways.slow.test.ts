// Other tools' locks and ours: the first one has the GPU, however either of them ends.
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  finished,
  Machine,
  NOBODY,
  output,
  processState,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import {
  directoryOf,
  fileOf,
  here,
  holdAs,
  NAMES,
  type Name,
  placeOf,
  startOriginal,
  tryAs,
} from '../support/other-tools.ts';
import { sendSignal, stat } from '../support/processes.ts';
import { withTimeouts } from '../support/time.ts';

const twoUsers = whyNotNobody() === null;

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

async function leases(): Promise<(string | null)[]> {
  const { stdout } = await machine.runCommand(['status', '--json'], here(machine));
  return JSON.parse(stdout).map(
    ({ lease }: { lease: { convention: string } | null }) => lease?.convention ?? null,
  );
}

async function claimed(args: string[] = ['-n', '1']): Promise<string> {
  const { stdout, stderr, code } = await machine.runCommand(
    ['run', '--no-wait', ...args, '--', 'printenv', 'CUDA_VISIBLE_DEVICES'],
    here(machine),
  );
  return code === 0 ? stdout.trim() : stderr;
}

/** Whether a process is this nvidia-smi: Python's child has the words of its parent at first. */
function isQuery(pid: string, smi: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').startsWith(`/bin/sh\0${smi}\0--query-gpu`);
  } catch {
    return false;
  }
}

/** A process of ours that holds GPU 0 in itself. */
async function owner(): Promise<ReturnType<Machine['start']>> {
  const script = machine.script(
    `const owner = new GPUOwner({ devices: 0, placeholder: 'none' }); console.log('claimed');
     process.stdin.on('data', () => { owner.release(); console.log('released'); }); process.on('SIGTERM', () => process.exit(3));
     setTimeout(() => {}, 60_000)`,
  );
  const child = machine.start([process.execPath, '--input-type=module', '-e', script], here(machine));
  await output(child, /claimed/);
  return child;
}

describe.each(NAMES)('%s', (name: Name) => {
  test('a GPU that the other tool holds is named and skipped, and a waiter gets it when the tool ends', async () => {
    const holder = await holdAs(machine, name, here(machine));
    const status = await machine.status();
    expect(status[0].state).toBe(name === 'pid-files' ? 'free' : 'leased'); // another working directory
    const [first, second] = JSON.parse(
      (await machine.runCommand(['status', '--json'], here(machine))).stdout,
    );
    expect(first).toMatchObject({
      state: 'leased',
      lease: { convention: name, pid: holder.pid, host: null },
    });
    expect(first.reason).toContain(`leased by ${name === 'gpu_lock' ? 'alice' : first.lease.user}`);
    expect(first.reason).toContain(`(${name}, pid ${holder.pid}`);
    expect(second.state).toBe('free');
    expect(await claimed()).toBe(uuidOf(1));
    expect(await claimed(['-n', '2'])).toContain(`GPU 0: leased by ${first.lease.user}`);
    expect(await claimed(['--devices', '0', '--force'])).toContain('leased by');
    const waiting = machine.startCommand(
      ['run', '--devices', '0', '--wait=20s', '--', 'true'],
      here(machine),
    );
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    holder.stdin?.end();
    expect((await finished(waiting)).code).toBe(0);
  });

  test("a killed tool's GPU is free at once", async () => {
    const holder = await holdAs(machine, name, here(machine));
    holder.kill('SIGKILL');
    await finished(holder);
    expect(await leases()).toEqual([null, null]);
    expect(await claimed(['--devices', '0'])).toBe(uuidOf(0));
    expect(await tryAs(machine, name, 0, here(machine))).toBe('locked');
  });
});

describe('all other tools', () => {
  beforeEach(() => {
    for (const name of NAMES) directoryOf(machine, name);
  });

  /** What each tool gets that wants a GPU now. */
  async function expectAll(gpu: number, answer: 'locked' | 'refused'): Promise<void> {
    const answers = await Promise.all(NAMES.map((name) => tryAs(machine, name, gpu, here(machine))));
    expect(Object.fromEntries(NAMES.map((name, at) => [name, answers[at]]))).toEqual(
      Object.fromEntries(NAMES.map((name) => [name, answer])),
    );
  }

  /** Nothing of a claim is left on GPU 0: neither marks nor locks. */
  async function expectGone(): Promise<void> {
    const left = NAMES.filter((name) => name !== 'gpu-scheduler' && existsSync(fileOf(machine, name)));
    expect(left).toEqual([]);
    await expectAll(0, 'locked');
  }

  test('see a command’s claim until the last descendant has ended', async () => {
    const job = machine.startCommand(
      ['run', '--devices', '0', '--', 'sh', '-c', '(sleep 60 & echo child $! ; wait) & echo up; exit 0'],
      here(machine),
    );
    const child = Number(await output(job, /child (\d+)/));
    await until(() => job.exitCode !== null);
    expect((await leases())[0]).toBe('gpu-owner');
    await expectAll(0, 'refused');
    await expectAll(1, 'locked');
    sendSignal(child, 'SIGKILL');
    await expect.poll(() => leases()).toEqual([null, null]);
    await expectGone();
  });

  test('still see the claim when the keeper is killed, until the job has ended', async () => {
    const job = machine.startCommand(
      ['run', '--devices', '0', '--', 'sh', '-c', 'echo me $$; exec sleep 60'],
      here(machine),
    );
    const command = Number(await output(job, /me (\d+)/));
    sendSignal(stat(command)?.parent, 'SIGKILL');
    await output(job, /the keeper .* was killed/);
    await expectAll(0, 'refused');
    sendSignal(command, 'SIGKILL');
    await expect.poll(() => leases()).toEqual([null, null]);
    await expectGone();
  });

  test.each(['release', 'kill'])('see an owner in a process until %s', async (way) => {
    const child = await owner();
    await expectAll(0, 'refused');
    if (way === 'release') {
      child.stdin?.write('x');
      await output(child, /released/);
    } else {
      child.kill('SIGKILL');
      await finished(child);
      // The next claim cleans up the marks of a killed owner; they are not in its way.
      expect(await claimed(['--devices', '0'])).toBe(uuidOf(0));
    }
    await expectGone();
  });

  test('find nothing of a claim that failed', async () => {
    const other = await holdAs(machine, 'gpu_lock', { gpu: 1 });
    expect(await claimed(['-n', '2'])).toContain('only 1 is free');
    await expectGone();
    other.kill();
  });
});

describe('gpu_lock', () => {
  test('our file names a PID that everybody finds alive, no user of its own, and can be read by all', async () => {
    directoryOf(machine, 'gpu_lock');
    const child = await owner();
    const path = fileOf(machine, 'gpu_lock');
    const lock = JSON.parse(readFileSync(path, 'utf8'));
    expect(lock).toMatchObject({ owner: 0, uid: 0, id: 0, 'gpu-owner': { uuid: uuidOf(0), pid: child.pid } });
    expect(lock.user).toMatch(/ \(gpu-owner\)$/);
    expect(statSync(path).mode & 0o777).toBe(0o644);
    child.kill('SIGKILL');
  });

  test('the next claim removes the marks of a killed owner, whichever GPU it takes', async () => {
    directoryOf(machine, 'gpu_lock');
    const child = await owner();
    child.kill('SIGKILL');
    await finished(child);
    expect(existsSync(fileOf(machine, 'gpu_lock'))).toBe(true);
    await machine.status(); // looking leaves it alone
    expect(existsSync(fileOf(machine, 'gpu_lock'))).toBe(true);
    expect(await claimed(['--devices', '1'])).toBe(uuidOf(1));
    expect(existsSync(fileOf(machine, 'gpu_lock'))).toBe(false);
  });

  test('the directory of its documentation counts as well, and ours is in both', async () => {
    const code = directoryOf(machine, 'gpu_lock');
    const documented = placeOf(machine, '/var/tmp/gpu_locks');
    const { mkdirSync } = await import('node:fs');
    mkdirSync(documented);
    const child = await owner();
    expect([code, documented].map((path) => existsSync(`${path}/gpu_0.json`))).toEqual([true, true]);
    child.kill('SIGKILL');
    await finished(child);
    const theirs = startOriginal(machine, ['hold', 'gpu_lock', documented, '1']);
    await output(theirs, /locked/);
    expect(await leases()).toEqual([null, 'gpu_lock']);
  });

  test('a lock that lasts only while they look and write is seen before a command starts, and respected', async () => {
    const directory = directoryOf(machine, 'gpu_lock');
    const slow = startOriginal(machine, ['hold', 'gpu_lock', directory, '0', '--window']);
    await output(slow, /looked/);
    const child = await owner(); // between their look and their writing
    slow.stdin?.write('write\n');
    await output(slow, /locked/);
    const theirs = readFileSync(fileOf(machine, 'gpu_lock'), 'utf8');
    expect(JSON.parse(theirs).owner).toBe(slow.pid);
    child.stdin?.write('x');
    await output(child, /released/);
    expect(readFileSync(fileOf(machine, 'gpu_lock'), 'utf8')).toBe(theirs);
    expect(await leases()).toEqual(['gpu_lock', null]);
  });

  test('a lock that comes while the placeholder is being made is noticed: another GPU is taken', async () => {
    const directory = directoryOf(machine, 'gpu_lock');
    const job = machine.startCommand(['run', '-n', '1', '--', 'printenv', 'CUDA_VISIBLE_DEVICES'], {
      ...here(machine),
      env: { GPU_OWNER_STOP_AT: 'environment' },
    });
    const outcome = finished(job);
    await until(() => processState(job.pid as number) === 'T');
    const slow = startOriginal(machine, ['hold', 'gpu_lock', `${directory}`, '0', '--overwrite']);
    await output(slow, /locked/);
    const resume = setInterval(() => job.kill('SIGCONT'), 20); // the job stops there again in its next attempt
    const { stdout, code } = await outcome;
    clearInterval(resume);
    expect([stdout.trim(), code]).toEqual([uuidOf(1), 0]);
  });

  describe('a lock that comes some ms after our claim, as nvidia-smi runs between their look and their writing', () => {
    beforeEach(async () => {
      await machine.close();
      machine = new Machine(3);
    });

    const withoutPlaceholder = ['run', '--placeholder', 'none', '--no-wait', '--'];

    test('is waited for where they have been seen, and the GPU is left to them', async () => {
      const directory = directoryOf(machine, 'gpu_lock');
      await holdAs(machine, 'gpu_lock', { gpu: 1 });
      const slow = startOriginal(machine, ['late', directory, '0', '0.06']);
      await output(slow, /looked/);
      // Longer than a busy machine takes for these 60 ms.
      const { stdout, stderr } = await machine.runCommand(
        [...withoutPlaceholder, 'printenv', 'CUDA_VISIBLE_DEVICES'],
        { env: withTimeouts({ gpuLock: 2_000 }) },
      );
      expect([stdout.trim(), stderr]).toEqual([uuidOf(2), '']);
    });

    test('is waited for as long as nvidia-smi takes, also where none was seen before', async () => {
      const smi = join(machine.directory, 'nvidia-smi');
      writeFileSync(smi, '#!/bin/sh\nread line\n', { mode: 0o755 }); // takes until the test says so
      const slow = startOriginal(machine, ['query', directoryOf(machine, 'gpu_lock'), '0', smi]);
      await output(slow, /looked/);
      await until(() => readdirSync('/proc').some((pid) => isQuery(pid, smi)));
      const claim = machine.startCommand([...withoutPlaceholder, 'printenv', 'CUDA_VISIBLE_DEVICES']);
      const outcome = finished(claim);
      await output(claim, /waiting for nvidia-smi \(pid \d+\): the Python program that started it may/);
      slow.stdin?.write('write\n');
      await output(slow, /locked/);
      expect((await outcome).stdout.trim()).toBe(uuidOf(1));
    });

    test('costs a claim no wait where nobody uses gpu_lock', async () => {
      const env = withTimeouts({ gpuLock: 60_000 });
      const { stdout, stderr } = await machine.runScript(
        `const began = performance.now(); new GPUOwner({ placeholder: 'none' }).release(); console.log(performance.now() - began)`,
        { env },
      );
      expect([Number(stdout), stderr]).toEqual([expect.toSatisfy((time: number) => time < 30_000), '']);
    });
  });

  test.skipIf(!twoUsers)(
    'a lock of another user is respected, and ours by that user (needs root, to act as two)',
    async () => {
      const holder = await holdAs(machine, 'gpu_lock', { uid: NOBODY });
      expect(await leases()).toEqual(['gpu_lock', null]);
      holder.stdin?.end();
      await finished(holder);
      const child = await owner();
      expect(await tryAs(machine, 'gpu_lock', 0, { uid: NOBODY })).toBe('refused');
      child.kill('SIGKILL');
      await finished(child);
      const { stdout } = await machine.runCommand(['run', '--devices', '0', '--', 'id', '-u'], {
        uid: NOBODY,
      });
      expect(stdout.trim()).toBe(String(NOBODY));
      expect(existsSync(fileOf(machine, 'gpu_lock'))).toBe(false);
    },
  );
});

test('GPU Scheduler takes a lock file that a claim of ours has left', async () => {
  const own = await owner();
  own.stdin?.write('x');
  await output(own, /released/);
  expect(readFileSync(fileOf(machine, 'gpu-scheduler'), 'utf8')).toBe('gpu-owner\n');
  await holdAs(machine, 'gpu-scheduler');
  expect(await leases()).toEqual(['gpu-scheduler', null]);
  expect(await claimed()).toBe(uuidOf(1));
});

test('a lock that GPU Scheduler takes for a moment, to probe, is not believed', async () => {
  const path = fileOf(machine, 'gpu-scheduler');
  const prober = machine.start(['python3', fixture('prober.py'), path]);
  await output(prober, /probing/);
  const { code, stderr } = await machine.runCommand(['run', '--no-wait', '--devices', '0', '--', 'true']);
  expect([code, stderr]).toEqual([0, '']);
});

test('in the home directory PID files are GPU Scheduler’s files, and left alone', async () => {
  const home = `${machine.directory}`;
  const directory = directoryOf(machine, 'pid-files');
  writeFileSync(`${directory}/gpu_0.lock`, '');
  const there = { cwd: home, env: { HOME: home } };
  const { code } = await machine.runCommand(['run', '--no-wait', '--devices', '0', '--', 'true'], there);
  expect([code, readFileSync(`${directory}/gpu_0.lock`, 'utf8')]).toEqual([0, '']);
});

test('GPUs have CUDA’s numbers where models differ, fastest first', async () => {
  const mixed = new Machine('mixed');
  try {
    const directory = directoryOf(mixed, 'gpu-scheduler');
    const holder = startOriginal(mixed, ['hold', 'gpu-scheduler', directory, '0']);
    await output(holder, /locked/);
    const states = (await mixed.status()).map(({ name, lease }) => [name, lease?.convention ?? null]);
    expect(states.filter(([, convention]) => convention !== null)).toHaveLength(1);
    const [held] = states.find(([, convention]) => convention === 'gpu-scheduler') ?? [];
    expect(held).not.toMatch(/T400/); // which is GPU 0 by its place, and the slowest
  } finally {
    await mixed.close();
  }
});
