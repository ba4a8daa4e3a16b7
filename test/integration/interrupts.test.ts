import type { ChildProcess } from 'node:child_process';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Finished, finished, Machine, output, pause, processState, until } from '../support/machine.ts';
import { quickest } from '../support/time.ts';

// The promise is 100 ms; a loaded machine may need longer to schedule two processes. The waits themselves last 2 s and more.
const SOON = 1_000;
const SHORTEST_WAIT = 2_000;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const HANDLER = `process.on('SIGINT', () => { console.log('handler'); process.exit(7); });`;
const NOW = 'new GPUOwner(1);';
const WAITING = 'await GPUOwner.acquire(1);';

/** @param handler what it does before it says that it has begun */
function startScript(source: string, { handler = '', env = {} } = {}): ChildProcess {
  const script = machine.script(`${handler} console.log('begun'); ${source}`);
  return machine.start([process.execPath, '--input-type=module', '-e', script], { env });
}

async function holder(): Promise<ChildProcess> {
  const child = startScript(`${NOW} console.log('claimed'); setInterval(() => {}, 1000)`);
  await output(child, /claimed/);
  return child;
}

/** The waits, by what they wait for. */
const WAITS: Record<string, { source: string; prepare: () => Promise<unknown> }> = {
  'constructor, for another claimant to decide': {
    source: NOW,
    prepare: async () => {
      const stopped = startScript(NOW, { env: { GPU_OWNER_STOP_AT: 'acquisition-lock' } });
      await until(() => processState(stopped.pid as number) === 'T');
    },
  },
  'constructor, for a driver call that hangs': {
    source: NOW,
    prepare: async () => machine.set('gpu=0', 'hang=memory'),
  },
  'acquire(), for a lease to end': { source: WAITING, prepare: holder },
};

describe.each(Object.keys(WAITS))('Ctrl-C during the wait of %s', (name) => {
  const { source, prepare } = WAITS[name] as (typeof WAITS)[string];

  async function interrupt(handler: string, within = (wait: string) => wait) {
    let result: Finished | undefined;
    const took = await quickest(SOON, async () => {
      if (result !== undefined) {
        await machine.close();
        machine = new Machine(1);
      }
      await prepare();
      const started = performance.now();
      const child = startScript(within(source), { handler });
      const outcome = finished(child);
      await output(child, /begun/);
      await pause(300);
      if (child.exitCode !== null) {
        // The claim did wait, and this process was too late to interrupt it.
        expect(performance.now() - started).toBeGreaterThan(SHORTEST_WAIT);
        result = await outcome;
        return Number.POSITIVE_INFINITY;
      }
      const begin = performance.now();
      child.kill('SIGINT');
      result = await outcome;
      return performance.now() - begin;
    });
    return { ...(result as Finished), took };
  }

  test('ends a program without a handler at once', async () => {
    const { signal, took } = await interrupt('');
    expect(signal).toBe('SIGINT');
    expect(took).toBeLessThan(SOON);
  });

  // For a wait in native code, and one in JavaScript.
  const isSample = /another claimant/.test(name);
  test.runIf(isSample)('runs the handler of a program that has one, at once', async () => {
    const { code, stdout, took } = await interrupt(
      HANDLER,
      (wait) => `try { ${wait} } catch {} setInterval(() => {}, 1000);`,
    );
    expect({ code, stdout }).toEqual({ code: 7, stdout: 'begun\nhandler\n' });
    expect(took).toBeLessThan(SOON);
  });
});

test('signals that are no interruption do not end a wait', async () => {
  const first = await holder();
  machine.set('teardown=800');
  first.kill('SIGKILL');
  await finished(first);
  const child = startScript(`${NOW} console.log('claimed')`, {
    handler: `process.on('SIGWINCH', () => {});`,
  });
  const outcome = finished(child);
  await output(child, /begun/);
  for (let i = 0; i < 5; i++) {
    child.kill('SIGWINCH');
    await pause(30);
  }
  expect(await outcome).toMatchObject({ code: 0, stdout: 'begun\nclaimed\n' });
});

test('Ctrl-C ends a waiting `hold`', async () => {
  await holder();
  const interrupt = async () => {
    const child = machine.startCommand(['hold', '--wait']);
    const outcome = finished(child);
    await output(child, /waiting for (?:a|\d+) GPU/);
    const begin = performance.now();
    child.kill('SIGINT');
    expect((await outcome).signal).toBe('SIGINT');
    return performance.now() - begin;
  };
  expect(await quickest(SOON, interrupt)).toBeLessThan(SOON);
});

test('acquire() gets the GPU as soon as its holder is killed', async () => {
  const takeOver = async () => {
    const first = await holder();
    const waiting = startScript(`${WAITING} console.log('mine')`);
    const outcome = finished(waiting);
    await output(waiting, /begun/);
    await pause(300);
    first.kill('SIGKILL');
    const begin = performance.now();
    expect(await outcome).toMatchObject({ code: 0, stdout: 'begun\nmine\n' });
    return performance.now() - begin;
  };
  expect(await quickest(SOON, takeOver)).toBeLessThan(SOON);
});

test('waiting for what will never come is refused at once, with the reasons', async () => {
  machine.set('gpu=0', 'compute-mode=prohibited');
  const { code, stderr } = await machine.runCommand(['run', '--', 'true']);
  expect(code).toBe(75);
  expect(stderr).toMatch(
    /waiting would not help: 1 GPU asked for, none is free:\n {2}GPU 0: its compute mode/,
  );
});
