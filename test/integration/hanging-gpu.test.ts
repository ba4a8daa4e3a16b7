// Each test waits for seconds, on a machine of its own: several at a time.
import { join } from 'node:path';
import { expect, type TestContext, test } from 'vitest';
import { finished, Machine, output } from '../support/machine.ts';
import { pause, quickest } from '../support/time.ts';

// In ms: the promise is 2 s; a process's start and a loaded machine come on top.
const SOON = 3_000;

function newMachine({ onTestFinished }: TestContext): Machine {
  const machine = new Machine(4);
  onTestFinished(() => machine.close());
  return machine;
}

test.concurrent.for(['memory', 'uuid'])(
  'a GPU whose call "%s" hangs is shown as not responding, and keeps nobody from claiming the others',
  async (call, context) => {
    const machine = newMachine(context);
    machine.set('gpu=1', `hang=${call}`);
    let gpus: Awaited<ReturnType<Machine['status']>> = [];
    const look = async () => {
      gpus = await machine.status();
    };
    expect(await quickest(SOON, look)).toBeLessThan(SOON);
    expect(gpus.map(({ state }) => state)).toEqual(['free', 'unavailable', 'free', 'free']);
    expect(gpus[1].reason).toMatch(/does not answer/);
    expect(gpus[1].memory.usedBytes).toBeNull();
    const claim = async () => {
      const { code, stdout } = await machine.runScript(
        'console.log(new GPUOwner(3).devices.map(({ index }) => index).join())',
      );
      expect({ code, stdout }).toEqual({ code: 0, stdout: '0,2,3\n' });
    };
    expect(await quickest(SOON, claim)).toBeLessThan(SOON);
  },
);

test.concurrent('a process stays usable and sees the GPU again when its call has returned', async (context) => {
  const machine = newMachine(context);
  const { stdout } = await machine.run([
    process.execPath,
    join(import.meta.dirname, 'fixtures/returning-call.mjs'),
  ]);
  expect(stdout.trim().split('\n')).toEqual([
    'free,free,free,free',
    'unavailable,free,unavailable,free',
    'unavailable,free,unavailable,free',
    'free,free,free,free',
  ]);
});

test.concurrent('the event loop goes on while a GPU hangs', async (context) => {
  const machine = newMachine(context);
  machine.set('gpu=3', 'hang=memory');
  // A loop that the look blocks stands still for most of a second.
  const longestStandstill = async () => {
    const { stdout } = await machine.runScript(`
      let last = performance.now();
      let longest = 0;
      const tick = () => {
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
      };
      setInterval(tick, 20).unref();
      await gpuOwner.getGPUs();
      tick();
      console.log(longest);`);
    expect(stdout).toMatch(/^[\d.]+\n$/);
    return Number(stdout);
  };
  expect(await quickest(300, longestStandstill)).toBeLessThan(300);
});

test.concurrent('a claimant whose driver thread hangs still gives its lease back when killed', async (context) => {
  const machine = newMachine(context);
  const holder = machine.start([
    process.execPath,
    '--input-type=module',
    '-e',
    machine.script(`
      const owner = new GPUOwner({ devices: [1], placeholder: 'none' });
      console.log('claimed');
      setInterval(async () => {
        const [{ state }] = await gpuOwner.getGPUs();
        if (state === 'unavailable') console.log('hangs');
      }, 50);`),
  ]);
  await output(holder, /claimed/);
  machine.set('gpu=0', 'hang=memory');
  await output(holder, /hangs/);
  expect((await machine.states())[1]).toBe('leased');
  holder.kill('SIGKILL');
  await new Promise((resolve) => holder.once('close', resolve));
  expect((await machine.states())[1]).toBe('free');
});

test.concurrent('a lease ends although CUDA does not let go of its GPU', async (context) => {
  const machine = newMachine(context);
  const program = join(import.meta.dirname, 'fixtures/releases-when-told.mjs');
  const owner = machine.start([process.execPath, program]);
  await output(owner, /claimed/);
  machine.set('gpu=1', 'hang=cuda-free');
  owner.stdin?.write('release');
  await output(owner, /released/);
  expect((await machine.states())[1]).toBe('busy'); // by its context
});

test.concurrent('GPUs that are all silent get the time that a start takes', async (context) => {
  const machine = newMachine(context);
  machine.set('gpu=all', 'hang=handle');
  const child = machine.startCommand(['status', '--json']);
  const outcome = finished(child);
  expect(await output(child, /warning: (.*)/)).toMatch(/^some GPUs don't answer yet.*`nvidia-smi -pm 1`/);
  machine.set('gpu=all', 'hang=off');
  const { code, stdout } = await outcome;
  expect(code).toBe(0);
  expect(JSON.parse(stdout).map(({ state }: { state: string }) => state)).toEqual(Array(4).fill('free'));
});

test.concurrent('a waiter goes on waiting while a GPU is silent for a moment', async (context) => {
  const machine = newMachine(context);
  const holder = machine.startCommand(['hold', '-n', '4', '--placeholder', 'none']);
  await output(holder, /devices/);
  const waiting = machine.startCommand(['run', '-n', '4', '--placeholder', 'none', '--', 'true']);
  const outcome = finished(waiting);
  await output(waiting, /waiting for (?:a|\d+) GPU/);
  machine.set('gpu=3', 'hang=memory');
  holder.stdin?.end();
  await pause(1_500);
  machine.set('gpu=3', 'hang=off');
  expect(await outcome).toMatchObject({ code: 0 });
});
