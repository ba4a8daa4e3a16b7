// The costs of a snapshot, a claim and a start, in calls: these are the same on every machine, however busy it is. Times are
// measured by `npm run bench`, instructions of the native part counted by native/tests/costs. A change that makes something
// cheaper lowers the bounds.
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { launcher, Machine, root } from '../support/machine.ts';
import { whyNoTracing } from '../support/processes.ts';

const GPUS = 8;
const noTracing = whyNoTracing();
/** How often they happen depends on how threads get on. */
const BY_CHANCE =
  /^(futex|clone3?|rseq|exit|mmap|munmap|mprotect|madvise|brk|set_robust_list|sched_\w+|restart_syscall|rt_sig\w+|epoll_\w+|gettid|getpid|[a-z]+\?)$/;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(GPUS);
});
afterEach(() => machine.close());

/** Calls that a snapshot makes for each GPU. */
const ASKED = [
  ...['memory', 'power', 'power-limit', 'utilization', 'temperature', 'compute-mode', 'display', 'mig'],
  ...['processes', 'graphics-processes'],
];
const each = (times: number) => Object.fromEntries(ASKED.map((call) => [call, times]));
/** Two questions of the memory's health, errors and repairs: for all GPUs every few seconds, and for each that is looked at alone. */
const memoryHealth = (times: number) => ({ ecc: 2 * times });
const CALLS_REMEDY =
  'The driver is asked for something else than ASKED names, or more often: leave that out, or change ASKED or the count if it must be.';

/**
 * System calls of one claim and its release; 341 were counted, whatever else runs; more where the directories lie deeper: 15 are for the line in the ledger of usage, twice 7 list
 * the lock directory for bookings, before the decision lock is taken and under it, 32 are for the user's turn, and 21 for
 * the names of leases, in the lock directory itself.
 */
const MAX_CALLS = 360;
/** Shell, what tells it what was inherited, Node.js, keeper, placeholder, and the command. */
const PROGRAMS = 6;

const CLAIM = `new GPUOwner(1, { placeholder: 'none' }).release();`;

describe('calls of the driver', () => {
  /** For one action in a process that has done it before: the fewest of several, as a busy machine is looked at once more. */
  async function callsOf(action: 'claim' | 'snapshot'): Promise<Record<string, number>> {
    const program = join(import.meta.dirname, 'fixtures/driver-calls.mjs');
    const { stdout, stderr, code } = await machine.run([process.execPath, program, action]);
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const runs = JSON.parse(stdout) as Record<string, number>[];
    const made = Object.keys(runs[0] ?? {}).filter((call) => runs.every((calls) => (calls[call] ?? 0) > 0));
    return Object.fromEntries(made.map((call) => [call, Math.min(...runs.map((calls) => calls[call] ?? 0))]));
  }

  test('a snapshot asks each GPU once for what changes, and for nothing else', async () => {
    expect(await callsOf('snapshot'), CALLS_REMEDY).toEqual(each(GPUS));
  });

  test('a claim looks at all GPUs once, and once more at the one that it takes', async () => {
    expect(await callsOf('claim'), CALLS_REMEDY).toEqual({
      ...each(GPUS + 1),
      ...memoryHealth(1),
      energy: 1, // the counter of the GPU that is taken, for its line in the ledger
    });
  });
});

/** The look at the newest processes, for gpu_lock, reads the more files the more have just begun: its calls are not counted. */
const LOOK = /["<]\/proc(\/\d+\/|>)/;

describe.skipIf(noTracing !== null)(
  `calls of the system${noTracing === null ? '' : `: ${noTracing}`}`,
  () => {
    let directory: string;
    beforeEach(() => {
      directory = mkdtempSync(join(tmpdir(), 'gpu-owner-costs-'));
    });
    afterEach(() => rmSync(directory, { recursive: true }));

    /** The calls of all processes and threads, by name. */
    async function traced(words: string[], ...options: string[]): Promise<string[]> {
      const file = join(directory, 'calls');
      const { code, stderr } = await machine.run(['strace', '-f', '-qq', ...options, '-o', file, ...words]);
      expect(stderr).toBe('');
      expect(code).toBe(0);
      return readFileSync(file, 'utf8').split('\n');
    }

    async function callsOf(times: number): Promise<Map<string, number>> {
      const source = machine.script(`for (let i = 0; i < ${times}; i++) { ${CLAIM} }`);
      const counts = new Map<string, number>();
      // With the files behind descriptors.
      for (const line of await traced([process.execPath, '--input-type=module', '-e', source], '-y')) {
        const name = /^\d+ +(\w+)\(/.exec(line)?.[1];
        if (name !== undefined && !BY_CHANCE.test(name) && !LOOK.test(line))
          counts.set(name, (counts.get(name) ?? 0) + 1);
      }
      return counts;
    }

    test('a claim and its release make few system calls', async () => {
      const [few, many] = [await callsOf(5), await callsOf(30)];
      const perTime = [...many].map(([name, count]) => [name, (count - (few.get(name) ?? 0)) / 25] as const);
      const calls = Object.fromEntries(perTime.filter(([, count]) => count >= 0.05));
      const sum = Object.values(calls).reduce((total, count) => total + count, 0);
      const remedy = `A claim makes more system calls: leave the new ones out, or raise MAX_CALLS if they must be. By name: ${JSON.stringify(calls)}`;
      expect(sum, remedy).toBeLessThanOrEqual(MAX_CALLS);
    });

    test('where only we have locked, nobody on the machine has to wait for a reader of /proc/locks', async () => {
      const source = machine.script(`for (let i = 0; i < 2; i++) { ${CLAIM} }\nawait gpuOwner.getGPUs();`);
      const lines = await traced([process.execPath, '--input-type=module', '-e', source]);
      expect(lines.filter((line) => line.includes('gpu_locks/gpu_0.lock')).length).toBeGreaterThan(0);
      expect(lines.filter((line) => line.includes('/proc/locks'))).toEqual([]);
    });

    test('gpu-owner run -- true starts no program, and reads no file of ours, that is not needed', async () => {
      await machine.run([launcher, 'run', '--', 'true']); // makes the lock directory
      const lines = await traced([launcher, 'run', '--', 'true']);
      const started = lines.filter(
        (line) => /execve\(.* = 0$/.test(line) || /<\.\.\. execve resumed>.* = 0$/.test(line),
      );
      const opened = lines
        // Where another thread calls meanwhile, the outcome is on another line.
        .map((line) => /open(?:at)?\([^"]*"([^"]+)".* (?:= \d+|<unfinished \.\.\.>)$/.exec(line)?.[1] ?? '')
        .filter((path) => path.startsWith(root) && !/\.(node|so\.1)$/.test(path) && existsSync(path))
        .map((path) => path.slice(root.length + 1));
      expect(started.length, started.join('\n')).toBe(PROGRAMS);
      expect(opened.filter((path) => !path.endsWith('.cache')).sort()).toEqual([
        ...['bin/gpu-owner.cjs', 'bin/gpu-owner.cjs'], // by the shell, and by Node.js
        // To be started, whatever becomes of the package while this waits.
        ...['build/Release/gpu-owner-keeper', 'build/Release/gpu-owner-placeholder'],
        ...['dist/claim.cjs', 'dist/gpu-owner.cjs'],
      ]);
    });
  },
);
