// GPUs for which NVML answers, and on which CUDA fails: every kind of claim takes others, and they come back by themselves.
import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, linkSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CUDA_CODES } from '../../lib/gpus/cuda-codes.ts';
import { alice, bob, endHolder, startHolder } from '../support/holders.ts';
import { finished, Machine, python, root, until, uuidOf, whyNotNobody } from '../support/machine.ts';
import { soakTest } from '../support/time.ts';

const GPUS = 3;
const noSecondUser = whyNotNobody();
const LEFT_OUT =
  /GPU 0 is left out: CUDA failed with 999 \(CUDA_ERROR_UNKNOWN\) in cuDevicePrimaryCtxRetain: /;
const AGAIN =
  /GPU 0 is tried again, as no other will do \(suspect: CUDA failed with 999 \(CUDA_ERROR_UNKNOWN\) at /;
const SHOW = ['sh', '-c', 'echo "on $CUDA_VISIBLE_DEVICES"'];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(GPUS);
  machine.set('gpu=0', 'error=cuda-context:999');
});
afterEach(() => machine.close());

const heal = () => machine.set('gpu=0', 'error=cuda-context:0');
const run = (options: string[] = [], starting = {}) =>
  machine.runCommand(['run', ...options, '--', ...SHOW], starting);
const suspect = async () => (await machine.status())[0].suspect;
const notes = () => readdirSync(machine.lockDirectory).filter((name) => name.startsWith('suspect-'));

describe('a GPU on which CUDA fails', () => {
  test('is left out by run, which says so in one line, and shown as suspect', async () => {
    const first = await run();
    expect(first).toMatchObject({ code: 0, stdout: `on ${uuidOf(1)}\n` });
    expect(first.stderr).toMatch(LEFT_OUT);
    expect(first.stderr.trim().split('\n')).toHaveLength(1);
    // Remembered: not even tried.
    expect(await run(['-n', '2'])).toMatchObject({
      code: 0,
      stdout: `on ${uuidOf(1)},${uuidOf(2)}\n`,
      stderr: '',
    });
    expect(await suspect()).toEqual({
      code: 999,
      name: 'CUDA_ERROR_UNKNOWN',
      since: expect.stringMatching(/^\d{4}-.*Z$/),
      seenBy: [expect.any(String)],
    });
    expect((await machine.runCommand(['status'])).stdout).toMatch(
      / suspect\n +suspect: CUDA failed with 999 \(CUDA_ERROR_UNKNOWN\) at \d\d:\d\d\n/,
    );
    expect((await machine.runCommand(['metrics'])).stdout).toMatch(
      /^gpu_owner_gpu_suspect\{gpu="0",.*\} 1$/m,
    );
    expect((await machine.runCommand(['find'])).stdout.trim()).toBe(uuidOf(1));
  });

  test('is left out by a claim in Node.js, though CUDA is bound once in a process', async () => {
    const { stdout, stderr } = await machine.runScript(`
      const owner = new GPUOwner();
      console.log(owner.devices.map(({ index }) => index), process.env.CUDA_VISIBLE_DEVICES);
      owner.release();
      const again = await GPUOwner.acquire({ maxWait: 10_000 });
      console.log(again.devices.map(({ index }) => index));`);
    expect(stdout).toBe(`[ 1 ] ${uuidOf(1)}\n[ 1 ]\n`);
    expect(stderr).toMatch(LEFT_OUT);
    expect(machine.allProcesses()).toEqual([[], [], []]);
    expect(
      (await machine.runScript('console.log((await GPUOwner.acquire(2)).devices.map(({ index }) => index))'))
        .stdout,
    ).toBe('[ 1, 2 ]\n');
  });

  test('is left out by a claim in Python', async () => {
    const script =
      'import gpu_owner, os\nwith gpu_owner.claim(): print(os.environ["CUDA_VISIBLE_DEVICES"])\nprint(gpu_owner.status()[0].suspect["code"])';
    const { stdout, stderr } = await machine.run([python, '-c', script], {
      env: { PYTHONPATH: join(root, 'python') },
    });
    expect(stderr).toMatch(LEFT_OUT);
    expect(stdout).toBe(`${uuidOf(1)}\n999\n`);
  });

  test('is left out by the workers of a sweep', async () => {
    writeFileSync(join(machine.directory, 'tasks'), 'echo a\necho b\necho c\n');
    const { code, stdout, stderr } = await machine.runCommand(
      ['exp', 'run', '-n', '2', '--commands', 'tasks'],
      { cwd: machine.directory },
    );
    expect(`${stdout}${stderr}`).toMatch(/GPU 0 is left out.*3 completed/s);
    expect(code).toBe(0);
  });

  test('is tried again where no other will do, and comes back by itself', async () => {
    expect((await run()).code).toBe(0);
    const failed = await run(['-n', String(GPUS), '--no-wait']);
    expect(failed.code).toBe(69);
    expect(failed.stderr).toMatch(AGAIN);
    expect(failed.stderr).toMatch(/GPU 0 failed: CUDA failed with 999 .*`nvidia-smi --gpu-reset -i 0`/);
    const before = await suspect();
    expect(notes()).toHaveLength(1);
    heal();
    const works = await run(['-n', String(GPUS)]);
    expect(works).toMatchObject({ code: 0, stderr: expect.stringMatching(AGAIN) });
    expect([before?.code, await suspect(), notes()]).toEqual([999, null, []]);
    expect(await run()).toMatchObject({ stdout: `on ${uuidOf(0)}\n`, stderr: '' });
  });

  test('lets a claim wait where all others are leased', async () => {
    const holder = await startHolder(machine, ['-n', '2', '--devices', '1,2']);
    const refused = await run(['--no-wait']);
    expect(refused.code).toBe(75);
    expect(refused.stderr).toMatch(/GPU 0: suspect: CUDA failed with 999.*\n.*GPU 1: leased by/);
    const waiting = machine.startCommand(['run', '--wait', '--', ...SHOW]);
    await until(async () => JSON.parse((await machine.runCommand(['queue', '--json'])).stdout).length === 1);
    await endHolder(holder);
    expect(await finished(waiting)).toMatchObject({ code: 0, stdout: `on ${uuidOf(1)}\n` });
  });

  test('is found by the doctor, which also sees it work again', async () => {
    const found = async () => {
      const { stdout } = await machine.runCommand(['doctor', '--json']);
      const findings: { id: string }[] = JSON.parse(stdout);
      return findings.filter(({ id }) => id.startsWith('cuda') && !id.includes('library'));
    };
    await run();
    expect(await found()).toMatchObject([
      { id: 'cuda-failed', text: expect.stringMatching(/^GPU 0: CUDA failed with 999/) },
      { id: 'cuda', text: 'CUDA starts on GPUs 1 and 2.' },
    ]);
    heal();
    expect(await found()).toMatchObject([{ id: 'cuda', text: 'CUDA starts on GPUs 0, 1 and 2.' }]);
    expect(await suspect()).toBeNull();
    machine.set('error=cuda-init:803');
    expect(await found()).toMatchObject([
      { id: 'cuda-failed', text: expect.stringMatching(/^The whole machine: /) },
    ]);
    expect(notes()).toEqual([]);
  });
});

/** One of each kind, beside 999: test/gpus/suspect.test.ts has the texts of all. */
const samples = new Map(Object.entries(CUDA_CODES).map((entry) => [entry[1].blames, entry]));
samples.delete('gpu');
test.each([...samples.values()])(
  'CUDA code %s leads to another GPU, or to an error with cause and remedy',
  async (code, { name, cause, remedy, blames }) => {
    machine.set('gpu=0', `error=cuda-context:${code}`);
    const { code: exit, stdout, stderr } = await run(['--no-wait']);
    expect(stderr).toContain(`CUDA failed with ${code} (${name}) in cuDevicePrimaryCtxRetain: ${cause}`);
    if (blames === 'machine') {
      expect([exit, stdout]).toEqual([69, '']);
      expect(stderr).toContain(`That concerns the whole machine, so no other GPU is tried. ${remedy}`);
    } else {
      expect([exit, stdout]).toEqual([0, `on ${uuidOf(1)}\n`]);
    }
    expect(notes()).toEqual([]);
  },
);

describe('a GPU on which CUDA hangs', () => {
  const QUICK = { env: { GPU_OWNER_TIMEOUTS: 'cudaStart:1500,cudaProbe:1500' } };
  const HANGS = /GPU 0 is left out: CUDA did not answer in time: the GPU or its driver hangs\./;
  beforeEach(() => {
    heal();
    machine.set('gpu=0', 'hang=cuda-context');
  });

  test('is left out by run and by a claim in Node.js, and is suspect', async () => {
    const first = await run([], QUICK);
    expect(first).toMatchObject({ code: 0, stdout: `on ${uuidOf(1)}\n` });
    expect(first.stderr).toMatch(HANGS);
    expect(await suspect()).toMatchObject({ code: 9999, name: 'NO_ANSWER' });
    for (const name of notes()) execFileSync('rm', [join(machine.lockDirectory, name)]);
    const script =
      'const owner = new GPUOwner(); console.log(owner.devices.map(({ index }) => index)); owner.release();';
    const { stdout, stderr } = await machine.runScript(script, QUICK);
    expect([stdout, stderr]).toEqual(['[ 1 ]\n', expect.stringMatching(HANGS)]);
    expect(machine.allProcesses()).toEqual([[], [], []]);
  });

  test('is not waited for long where it is known, and comes back by itself', async () => {
    await run([], QUICK);
    const again = await run(['-n', String(GPUS), '--no-wait'], {
      env: { GPU_OWNER_TIMEOUTS: 'cudaStart:600000,cudaProbe:1500' },
    });
    expect(again.code).toBe(69);
    expect(again.stderr).toMatch(
      /GPU 0 is tried again.*GPU 0 is left out: CUDA did not answer.*the placeholder failed: CUDA did not answer/s,
    );
    machine.set('gpu=0', 'hang=off');
    expect((await run(['-n', String(GPUS)], QUICK)).code).toBe(0);
    expect([await suspect(), notes()]).toEqual([null, []]);
  });

  soakTest('does not cost a claim a minute per GPU, nor is it blamed, where CUDA hangs on all', async () => {
    machine.set('gpu=all', 'hang=cuda-context');
    const several = await run(['-n', '2', '--no-wait'], QUICK);
    expect([several.code, notes()]).toEqual([69, []]);
    expect(several.stderr).toMatch(
      /the placeholder failed: CUDA did not answer in time.*--placeholder none/s,
    );
    expect((await machine.runCommand(['doctor'], QUICK)).stdout).toMatch(
      /The whole machine:\s+CUDA\s+did\s+not\s+answer/,
    );
    expect(notes()).toEqual([]);
    const one = await run(['--no-wait'], QUICK);
    expect([one.code, notes().length]).toEqual([69, 1]); // the second one was tried
    expect(one.stderr.match(/is left out/g)).toHaveLength(1);
  });
});

describe.skipIf(noSecondUser !== null)(`suspect GPUs: ${noSecondUser ?? 'two users'}`, () => {
  test('one user takes no GPU from others, two do', async () => {
    expect((await run([], alice)).stderr).toMatch(LEFT_OUT);
    // For bob it is shown, but a GPU as all others.
    expect((await suspect()).seenBy).toEqual(['nobody']);
    expect((await run([], bob)).stderr).toMatch(LEFT_OUT);
    expect((await suspect()).seenBy).toHaveLength(2);
    expect(await run()).toMatchObject({ stdout: `on ${uuidOf(1)}\n`, stderr: '' });
  });

  test('forged and hostile notes change nothing', async () => {
    expect((await run([], alice)).code).toBe(0); // makes the directory
    heal();
    for (const name of notes()) execFileSync('rm', [join(machine.lockDirectory, name)]);
    const text = (uuid: string) => JSON.stringify({ uuid, code: 999, since: Date.now(), at: Date.now() });
    const make = (name: string, contents: string, { uid = alice.uid, mode = 0o644 } = {}) => {
      const path = join(machine.lockDirectory, name);
      writeFileSync(path, contents);
      chownSync(path, uid, uid);
      chmodSync(path, mode);
      return path;
    };
    // All of one user's; and of root's only what others may write to, or what is no file of its own.
    for (let i = 0; i < 4; i++) make(`suspect-a${i}`, text(uuidOf(0)));
    make('suspect-b0', text(uuidOf(1)), { uid: 0, mode: 0o666 });
    make('suspect-b1', text(uuidOf(1)).padEnd(1_000_000), { uid: 0 });
    make('suspect-b2', '{"uuid":1}', { uid: 0 });
    make('suspect-b3', text(uuidOf(1)).replace(/"at":\d+/, '"at":4102444800000'), { uid: alice.uid });
    const elsewhere = join(machine.directory, 'elsewhere');
    writeFileSync(elsewhere, text(uuidOf(1)));
    symlinkSync(elsewhere, join(machine.lockDirectory, 'suspect-c0'));
    linkSync(join(machine.lockDirectory, 'suspect-a0'), join(machine.lockDirectory, 'suspect-c1'));
    execFileSync('mkfifo', [join(machine.lockDirectory, 'suspect-c2')]);
    execFileSync('mkdir', [join(machine.lockDirectory, 'suspect-c3')]);
    expect(await run([], bob)).toMatchObject({ code: 0, stdout: `on ${uuidOf(0)}\n`, stderr: '' });
    const [first, second] = await machine.status();
    expect([first.suspect?.seenBy ?? null, second.suspect?.seenBy]).toEqual([null, ['nobody']]);
    expect(await run(['-n', String(GPUS)], bob)).toMatchObject({ code: 0, stderr: '' });
  });
});

test('a waiter takes a GPU that works again within its wait', async () => {
  const waiting = machine.startCommand(['run', '--devices', '0', '--wait', '--', ...SHOW], {
    env: { GPU_OWNER_TIMEOUTS: 'retryGPU:300' },
  });
  if (waiting.stderr === null) throw new Error('no standard error');
  const said: string[] = [];
  waiting.stderr.on('data', (text) => said.push(String(text)));
  await until(async () => LEFT_OUT.test(said.join('')));
  heal();
  expect(await finished(waiting)).toMatchObject({ code: 0, stdout: `on ${uuidOf(0)}\n` });
  expect(said.join('')).toMatch(AGAIN);
});
