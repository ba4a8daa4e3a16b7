// Releases beside each other: claims of the first release and of this tree exclude each other, and a package may be upgraded or
// removed under jobs that run or wait.
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, Machine, output, python, root } from '../support/machine.ts';
import { until } from '../support/time.ts';

/** As it was published for npm, its binaries for x64 only. Never to be made anew. */
const FIRST = join(import.meta.dirname, 'releases/gpu-owner-0.1.0.tgz');
const WITNESS = join(import.meta.dirname, 'fixtures/gpu_witness.py');

let scratch: string;
let first: string;
let current: string;
beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-releases-'));
  first = unpack(FIRST, 'first');
  cpSync(join(binaries(), 'simulator'), join(scratch, 'driver'), { recursive: true });
  const made = join(scratch, 'made');
  const from = ['--binaries', binaries(), '--arch', process.arch, '--quick', '--out', made];
  execFileSync(process.execPath, [join(root, 'scripts/package.js'), ...from, 'npm'], { stdio: 'pipe' });
  const { version } = JSON.parse(
    execFileSync('npm', ['pkg', 'get', 'version', '--json'], { cwd: root, encoding: 'utf8' }).replace(
      /^(".*")\s*$/,
      '{"version":$1}',
    ),
  );
  current = unpack(join(made, `gpu-owner-${version}.tgz`), 'current');
}, 120_000);
afterAll(() => rmSync(scratch, { recursive: true }));

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

/** @returns the directory of the package, which finds its dependencies as in a project */
function unpack(tarball: string, name: string): string {
  const directory = join(scratch, name);
  mkdirSync(join(directory, 'node_modules'), { recursive: true });
  execFileSync('tar', ['xf', tarball, '-C', directory]);
  for (const each of ['node-gyp-build', 'yaml', '@photostructure']) {
    symlinkSync(join(root, 'node_modules', each), join(directory, 'node_modules', each));
  }
  return join(directory, 'package');
}

const command = (directory: string) => join(directory, 'bin/gpu-owner.cjs');
const start = (directory: string, ...args: string[]) =>
  machine.start([process.execPath, command(directory), ...args], { env: driver() });

/** The same simulated driver for all: a real one isn't part of a package either. */
const driver = () => ({
  GPU_OWNER_INHERITED: '',
  GPU_OWNER_NVML_LIBRARY: join(scratch, 'driver/libnvidia-ml.so.1'),
  GPU_OWNER_CUDA_LIBRARY: join(scratch, 'driver/libcuda.so.1'),
});

describe.skipIf(process.arch !== 'x64')(
  'the first release and this one (x64 only: the first one’s binaries are)',
  () => {
    test('never hold a GPU twice when both claim, and leave nothing when they are killed', async () => {
      const jobs = Array.from({ length: 24 }, (_, index) => {
        const job = start(
          index % 2 === 0 ? first : current,
          'run',
          '--',
          python,
          WITNESS,
          machine.directory,
          '0.3',
        );
        if (index % 6 >= 4) setTimeout(() => job.kill('SIGKILL'), 400 + 100 * index);
        return { job, isKilled: index % 6 >= 4 };
      });
      const ends = await Promise.all(
        jobs.map(async ({ job, isKilled }) => ({ isKilled, ...(await finished(job)) })),
      );
      for (const { isKilled, code, stderr } of ends) {
        if (isKilled) expect([null, 0, 137]).toContain(code);
        else expect({ code, stderr }).toMatchObject({ code: 0 });
      }
      await until(async () => {
        const { stdout } = await finished(start(current, 'status', '--json'));
        return stdout !== '' && !/"state":\s*"leased"/.test(stdout);
      }, 'no lease');
    });

    test.each([
      ['the first in this one', () => [current, first]],
      ['this one in the first', () => [first, current]],
    ])('can claim inside a job of the other, and get GPUs of that job: %s', async (_, order) => {
      const [outer, inner] = order() as [string, string];
      const inside = [
        process.execPath,
        command(inner),
        'run',
        '-n',
        '2',
        '--',
        'sh',
        '-c',
        'echo $CUDA_VISIBLE_DEVICES',
      ];
      const { stdout, stderr, code } = await finished(
        start(outer, 'run', '-n', '2', '--devices', '2,3', '--', ...inside),
      );
      expect({ stderr, code }).toEqual({ stderr: '', code: 0 });
      expect(
        stdout
          .trim()
          .split(',')
          .map((uuid) => uuid.at(-1))
          .sort(),
      ).toEqual(['2', '3']);
    });

    test('have their waiters in one queue, first come, first served', async () => {
      const holder = start(current, 'hold', '-n', '4');
      await output(holder, /visibleDevices/);
      const order: string[] = [];
      const waiters = [];
      for (const [name, directory] of [
        ['a', first],
        ['b', current],
        ['c', first],
      ] as const) {
        const waiter = start(directory, 'run', '-n', '4', '--', 'sh', '-c', 'sleep 0.1');
        waiters.push(finished(waiter).then(() => order.push(name)));
        await until(async () => {
          const { stdout } = await finished(start(current, 'queue', '--json'));
          return (JSON.parse(stdout) as unknown[]).length === waiters.length;
        }, `${name} in the queue`);
      }
      holder.stdin?.end();
      await Promise.all(waiters);
      expect(order).toEqual(['a', 'b', 'c']);
    });

    test.each([
      ['this one', () => [current, first], ['--for', '1h']],
      ['the first', () => [first, current], []],
    ])('show each other’s leases and requests: those of %s', async (_, order, limit) => {
      const [own, other] = order() as [string, string];
      const sleeping = ['--', 'sh', '-c', 'echo started; exec sleep 600'];
      const holder = start(own, 'run', '-n', '4', ...limit, ...sleeping);
      await output(holder, /started/);
      const waiter = start(own, 'run', ...limit, ...sleeping);
      const look = async (what: string) => JSON.parse((await finished(start(other, what, '--json'))).stdout);
      await until(async () => (await look('queue')).length === 1, 'the request');
      const [request] = await look('queue');
      expect(request).toMatchObject({ position: 1, count: 1, pid: waiter.pid, stopped: false });
      expect(request.latestStart ?? null).toBe(null);
      expect(request.waitingFor).toHaveLength(4);
      for (const { state, lease } of await look('status')) {
        expect({ state, lease }).toMatchObject({ state: 'leased', lease: { convention: 'gpu-owner' } });
        expect(lease.command).toContain('sleep 600');
        expect(lease).not.toHaveProperty('until');
      }
    });

    test('the first one sees a GPU with shares as leased until the last of them ends, and its leases exclude shares', async () => {
      const run = (directory: string, ...words: string[]) =>
        finished(start(directory, 'run', '--devices', '0', ...words, '--', 'true'));
      const share = async () => {
        const holder = start(current, 'hold', '--memory', '10GiB', '--devices', '0');
        await output(holder, /visibleDevices/);
        return holder;
      };
      const shares = [await share(), await share(), await share()];
      const isRefused = async () => {
        const { code, stderr } = await run(first, '--no-wait');
        expect({ code, stderr }).toMatchObject({
          code: 75,
          stderr: expect.stringMatching(/GPU 0: l(eas|ock)ed/),
        });
        const [gpu] = JSON.parse((await finished(start(first, 'status', '--json'))).stdout);
        expect(gpu.state).toBe('leased');
      };
      await isRefused();
      shares[0]?.kill('SIGKILL');
      await isRefused();
      shares[1]?.stdin?.end();
      await finished(shares[1] as (typeof shares)[0]);
      await isRefused();
      const waiting = run(first);
      shares[2]?.stdin?.end();
      expect(await waiting).toMatchObject({ code: 0 });
      const lease = start(first, 'hold', '--devices', '0');
      await output(lease, /visibleDevices/);
      const refused = await run(current, '--no-wait', '--memory', '10GiB');
      expect(refused).toMatchObject({ code: 75, stderr: expect.stringMatching(/GPU 0: leased by/) });
      lease.stdin?.end();
      await finished(lease);
    });

    describe.each([
      ['upgraded', (place: string) => cpSync(current, place, { recursive: true })],
      ['removed', () => {}],
    ])('a package that is %s', (_, replace) => {
      let place: string;
      beforeEach(() => {
        place = join(mkdtempSync(join(scratch, 'place-')), 'package');
        cpSync(first, place, { recursive: true });
        symlinkSync(join(scratch, 'first/node_modules'), join(place, '../node_modules'));
      });

      /** As npm and dpkg do it: files are replaced, not written over. */
      function change(): void {
        renameSync(place, `${place}-old`);
        replace(place);
        rmSync(`${place}-old`, { recursive: true });
      }

      test('a job that runs goes on, one that waits gets its GPUs, and both end with their codes', async () => {
        const env = driver();
        const run = (...args: string[]) =>
          machine.start([process.execPath, command(place), ...args], { env });
        const flag = join(machine.directory, 'go');
        const job = run(
          'run',
          '-n',
          '4',
          '--',
          'sh',
          '-c',
          `echo runs; while [ ! -e ${flag} ]; do sleep 0.05; done; exit 3`,
        );
        await output(job, /runs/);
        const waiter = run('run', '-n', '2', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES; exit 4');
        await until(async () => {
          const { stdout } = await finished(start(current, 'queue', '--json'));
          return (JSON.parse(stdout) as unknown[]).length === 1;
        }, 'the waiter in the queue');
        change();
        writeFileSync(flag, '');
        expect(await finished(job)).toMatchObject({ code: 3, stderr: '' });
        const { code, stdout, stderr } = await finished(waiter);
        expect({ code, stdout }).toMatchObject({
          code: 4,
          stdout: expect.stringMatching(/^GPU-\S+,GPU-\S+\n$/),
        });
        expect(stderr).not.toMatch(/can't/);
      });

      test('the workers of an experiment finish all of its tasks', async () => {
        const project = mkdtempSync(join(scratch, 'project-'));
        const words = ['exp', 'run', '--gpus', '2', '--grid', 'a=1,2,3,4,5,6', '--', 'sleep', '0.5'];
        const sweep = machine.start([process.execPath, command(place), ...words], {
          cwd: project,
          env: driver(),
        });
        await output(sweep, /completed by/);
        change();
        const { code, stdout, stderr } = await finished(sweep);
        expect({ code, text: stdout + stderr }).toMatchObject({
          code: 0,
          text: expect.stringMatching(/6 completed/),
        });
      });
    });
  },
);
