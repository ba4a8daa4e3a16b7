import type { ChildProcess } from 'node:child_process';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  type Finished,
  finished,
  Machine,
  output,
  pause,
  processState,
  python,
  until,
} from '../support/machine.ts';
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
  'constructor, for the driver to forget a dead holder': {
    source: NOW,
    prepare: async () => {
      const dead = await holder();
      machine.set('teardown=60000');
      dead.kill('SIGKILL');
      await finished(dead);
    },
  },
  'constructor, for a driver call that hangs': {
    source: NOW,
    prepare: async () => machine.set('gpu=0', 'hang=memory'),
  },
  'constructor, for a driver that hangs at its start': {
    source: NOW,
    prepare: async () => machine.set('hang=init'),
  },
  'acquire(), for another claimant to decide': {
    source: WAITING,
    prepare: async () => {
      const stopped = startScript(NOW, { env: { GPU_OWNER_STOP_AT: 'acquisition-lock' } });
      await until(() => processState(stopped.pid as number) === 'T');
    },
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

  test.runIf(isSample)(
    'ends a program whose handler only notes it and that does not catch the error',
    async () => {
      const { code, took } = await interrupt(
        `process.on('SIGINT', () => { process.exitCode = 1; process.exit(); });`,
      );
      expect(code).toBe(1);
      expect(took).toBeLessThan(SOON);
    },
  );
});

test('a constructor that a signal ended says so and holds nothing', async () => {
  const dead = await holder();
  machine.set('teardown=60000');
  dead.kill('SIGKILL');
  await finished(dead);
  const child = startScript(
    `try { ${NOW} } catch (error) { console.log(error.code) } process.stdin.resume();`,
    {
      handler: `process.on('SIGINT', () => {});`,
    },
  );
  const outcome = finished(child);
  const told = output(child, /ERR_\w+/);
  await output(child, /begun/);
  // Again and again, as only one that comes during the wait ends it.
  const interrupting = setInterval(() => child.kill('SIGINT'), 50);
  await told.finally(() => clearInterval(interrupting));
  child.stdin?.end();
  expect(await outcome).toMatchObject({ code: 0, stdout: 'begun\nERR_ABORTED\n' });
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

test.each(['hold'])('Ctrl-C ends a waiting `%s`', async (name) => {
  await holder();
  const interrupt = async () => {
    const child = machine.startCommand([
      name,
      '--wait',
      ...(name === 'run' ? ['--', python, '-c', 'print(1)'] : []),
    ]);
    const outcome = finished(child);
    await output(child, /waiting for (?:a|\d+) GPU/);
    const begin = performance.now();
    child.kill('SIGINT');
    expect((await outcome).signal).toBe('SIGINT');
    return performance.now() - begin;
  };
  expect(await quickest(SOON, interrupt)).toBeLessThan(SOON);
});

test('an AbortSignal ends acquire(), and maxWait does', async () => {
  await holder();
  const { stdout } = await machine.runScript(`
    for (const options of [
      () => ({ signal: AbortSignal.timeout(100) }), () => ({ maxWait: 100 }), () => ({ maxWait: 0 }), () => ({ signal: AbortSignal.abort() }),
    ]) {
      let code;
      let took = Infinity;
      for (let i = 0; i < 5 && took >= 1_500; i++) {
        const begin = performance.now();
        await GPUOwner.acquire(1, options()).catch((error) => (code = error.code));
        took = performance.now() - begin;
      }
      console.log(code, took < 1_500);
    }`);
  expect(stdout).toBe('ERR_ABORTED true\nERR_TIMEOUT true\nERR_TIMEOUT true\nERR_ABORTED true\n');
});

test('acquire() gets the GPU as soon as its lease ends, however it ends', async () => {
  for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
    const takeOver = async () => {
      const first = await holder();
      const waiting = startScript(`${WAITING} console.log('mine')`);
      const outcome = finished(waiting);
      await output(waiting, /begun/);
      await pause(300);
      first.kill(signal);
      const begin = performance.now();
      expect(await outcome).toMatchObject({ code: 0, stdout: 'begun\nmine\n' });
      return performance.now() - begin;
    };
    expect(await quickest(SOON, takeOver)).toBeLessThan(SOON);
  }
});

test('waiting for what will never come is refused at once, with the reasons', async () => {
  machine.set('gpu=0', 'compute-mode=prohibited');
  const { code, stderr } = await machine.runCommand(['run', '--', 'true']);
  expect(code).toBe(75);
  expect(stderr).toMatch(
    /waiting would not help: 1 GPU asked for, none is free:\n {2}GPU 0: its compute mode/,
  );
});
