// The locks that processes hold whose driver call is stuck in the kernel, by how they end, as the kernel's own list tells.
import type { ChildProcess } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { because } from '../support/driver-library.ts';
import { output, pause, processState, python, until } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { noStuckCalls, SOON, StuckMachine, untilStuckAtItsEnd } from '../support/stuck-machine.ts';

/** How processes end; each is told on its standard input, or by a signal. */
const ENDS: Record<string, (child: ChildProcess) => void> = {
  'process.exit()': (child) => child.stdin?.write('process.exit(3)\n'),
  SIGTERM: (child) => child.kill('SIGTERM'),
  SIGKILL: (child) => child.kill('SIGKILL'),
};

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const OBEY = `process.stdin.setEncoding('utf8').on('data', (text) => (0, eval)(text));`;

describe
  .skipIf(noStuckCalls !== null)
  .concurrent(`a call that is stuck in the kernel${because(noStuckCalls)}`, { timeout: 40_000 }, () => {
    async function owner(machine: StuckMachine): Promise<ChildProcess> {
      const child = machine.start([
        process.execPath,
        '--input-type=module',
        '-e',
        machine.script(`
          import { writeFileSync } from 'node:fs';
          globalThis.owner = new GPUOwner({ devices: [1], placeholder: 'none' });
          writeFileSync(process.env.STUCK_WHILE, '');
          console.log((await gpuOwner.getGPUs()).map(({ state }) => state).join());
          ${OBEY}`),
      ]);
      expect(await output(child, /(.*)\n/, SOON)).toBe('unavailable,leased');
      return child;
    }

    test.for(Object.keys(ENDS))('a lease ends with %s', async (name, context) => {
      const machine = await StuckMachine.make(context);
      const child = await owner(machine);
      expect(machine.locked()).toBe('lease');
      ENDS[name]?.(child);
      await untilStuckAtItsEnd(child);
      if (name === 'SIGKILL') {
        await pause(300);
        expect(machine.locked()).toBe('lease'); // no process is left that could release it
      } else {
        await until(() => machine.locked() === '', SOON);
      }
      await machine.letGo();
      await until(() => machine.locked() === '', SOON);
      await until(() => child.exitCode !== null || child.signalCode !== null, SOON);
    });

    test('a lease ends with release(), and programs that were started keep nothing', async (context) => {
      const machine = await StuckMachine.make(context);
      const child = await owner(machine);
      child.stdin?.write(`
        const sleeper = process.getBuiltinModule('child_process').spawn('sleep', ['60'], { stdio: 'ignore' });
        owner.release();
        console.log(sleeper.pid);\n`);
      const sleeper = Number(await output(child, /(\d+)\n/, SOON));
      context.onTestFinished(() => void sendSignal(sleeper, 'SIGKILL'));
      expect(machine.locked()).toBe('');
      expect(child.exitCode).toBeNull();
    });

    /** A claim of GPU 0 that has decided, when the GPU gets stuck. */
    async function claimant(machine: StuckMachine, claim: string): Promise<ChildProcess> {
      const child = machine.start(
        [process.execPath, '--input-type=module', '-e', machine.script(`${OBEY} ${claim}`)],
        { env: { GPU_OWNER_STOP_AT: 'leased' } },
      );
      await until(() => processState(child.pid as number) === 'T', SOON);
      machine.getStuck();
      expect(machine.locked()).toBe('decision lease share');
      child.kill('SIGCONT');
      return child;
    }
    const NOW = `try { new GPUOwner({ devices: [0] }) } catch (error) { console.log(error.code) }`;
    const LATER = `GPUOwner.acquire({ devices: [0], maxWait: 0 }).catch((error) => console.log(error.code));`;

    test.for([NOW, LATER])(
      'a claim that gives up holds nothing, and its process lives: %s',
      async (claim, context) => {
        const machine = await StuckMachine.make(context);
        const child = await claimant(machine, claim);
        expect(await output(child, /(ERR_\w+)\n/, SOON)).toMatch(/ERR_GPU_UNAVAILABLE|ERR_TIMEOUT/);
        expect(machine.locked()).toBe('');
        expect(child.exitCode).toBeNull();
      },
    );

    test('a claim that is under way when its process exits holds nothing', async (context) => {
      const machine = await StuckMachine.make(context);
      const child = await claimant(machine, LATER);
      await machine.untilStuck();
      child.stdin?.write('process.exit(3)\n');
      await until(() => machine.locked() === '', SOON);
      await untilStuckAtItsEnd(child);
    });

    test('a claim that is killed in the middle holds all until the call returns', async (context) => {
      const machine = await StuckMachine.make(context);
      const child = await claimant(machine, NOW);
      await machine.untilStuck();
      child.kill('SIGKILL');
      await untilStuckAtItsEnd(child);
      expect(machine.locked()).toBe('decision lease share');
      await machine.letGo();
      await until(() => machine.locked() === '', SOON);
    });

    /** A command on GPU 1 that repeats the signals it gets, and ends with 7 when its input does. */
    const COMMAND = [python, fixture('repeats_signals.py')];

    async function job(machine: StuckMachine, words: string[], ready: RegExp): Promise<ChildProcess> {
      machine.getStuck();
      const child = machine.startCommand([...words.slice(0, 1), '--devices', '1', ...words.slice(1)]);
      await output(child, ready, SOON);
      expect(machine.locked()).toBe('lease');
      return child;
    }

    test('run’s command runs, gets its signals, and ends as it would', async (context) => {
      const machine = await StuckMachine.make(context);
      const child = await job(machine, ['run', '--', ...COMMAND], /runs\n/);
      let said = '';
      child.stdout?.on('data', (text) => (said += text));
      child.kill('SIGTERM');
      await expect.poll(() => said, { timeout: SOON }).toBe('SIGTERM\n');
      child.kill('SIGUSR1');
      await expect.poll(() => said, { timeout: SOON }).toBe('SIGTERM\nSIGUSR1\n');
      const closed = new Promise((resolve) => child.stdout?.once('end', resolve));
      child.stdin?.end();
      await until(() => machine.locked() === '', SOON);
      await closed; // no process has its output open any longer
      await untilStuckAtItsEnd(child);
      await machine.letGo();
      await until(() => child.exitCode !== null, SOON);
      expect(child.exitCode).toBe(7);
    });

    test('run’s job goes on when run is killed with SIGKILL, and nothing is held after its end', async (context) => {
      const machine = await StuckMachine.make(context);
      const child = await job(machine, ['run', '--', ...COMMAND], /runs\n/);
      child.kill('SIGKILL');
      await untilStuckAtItsEnd(child);
      expect(machine.locked()).toBe('lease');
      child.stdin?.end();
      await until(() => machine.locked() === '', SOON);
    });

    test('hold’s claim ends with its input, and with SIGTERM', async (context) => {
      const machine = await StuckMachine.make(context);
      const first = await job(machine, ['hold'], /devices/);
      first.stdin?.end();
      await until(() => machine.locked() === '', SOON);
      const second = await job(machine, ['hold'], /devices/);
      second.kill('SIGTERM');
      await until(() => machine.locked() === '', SOON);
    });

    test('a worker that is killed keeps its GPU until its attempt has ended', async (context) => {
      const machine = await StuckMachine.make(context);
      const project = join(machine.directory, 'project');
      mkdirSync(project);
      machine.getStuck();
      const child = machine.startCommand(
        ['exp', 'run', '-n', '1', '--devices', '1', '--grace', '0s', '--grid', 'x=1', '--', 'sleep', '60'],
        { cwd: project },
      );
      await until(() => machine.locked() === 'attempt lease', SOON);
      child.kill('SIGKILL');
      await untilStuckAtItsEnd(child);
      await pause(300);
      expect(machine.locked()).toBe('attempt lease');
      await machine.letGo();
      await until(() => machine.locked() === '', SOON);
    });
  });
