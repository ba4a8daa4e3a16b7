// A package that is upgraded or removed under jobs that run or wait, as npm and dpkg do it.
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { finished, Machine, output, root } from '../support/machine.ts';
import { until } from '../support/time.ts';

let scratch: string;
let made: string;
beforeAll(() => {
  scratch = mkdtempSync(join(tmpdir(), 'gpu-owner-upgrade-'));
  cpSync(join(binaries(), 'simulator'), join(scratch, 'driver'), { recursive: true });
  const out = join(scratch, 'out');
  const from = ['--binaries', binaries(), '--arch', process.arch, '--quick', '--out', out];
  execFileSync(process.execPath, [join(root, 'scripts/package.js'), ...from, 'npm'], { stdio: 'pipe' });
  const tarball = readdirSync(out).find((name) => name.endsWith('.tgz')) as string;
  mkdirSync(join(scratch, 'made/node_modules'), { recursive: true });
  execFileSync('tar', ['xf', join(out, tarball), '-C', join(scratch, 'made')]);
  for (const each of ['node-gyp-build', '@photostructure']) {
    symlinkSync(join(root, 'node_modules', each), join(scratch, 'made/node_modules', each));
  }
  made = join(scratch, 'made/package');
}, 120_000);
afterAll(() => rmSync(scratch, { recursive: true }));

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

const command = (directory: string) => join(directory, 'bin/gpu-owner.cjs');

/** The simulated driver, as a real one isn't part of a package either. */
const driver = () => ({
  GPU_OWNER_INHERITED: '',
  GPU_OWNER_NVML_LIBRARY: join(scratch, 'driver/libnvidia-ml.so.1'),
  GPU_OWNER_CUDA_LIBRARY: join(scratch, 'driver/libcuda.so.1'),
});

describe('a package that is removed, as it is at the start of an upgrade', () => {
  let place: string;
  beforeEach(() => {
    place = join(mkdtempSync(join(scratch, 'place-')), 'package');
    cpSync(made, place, { recursive: true });
    symlinkSync(join(scratch, 'made/node_modules'), join(place, '../node_modules'));
  });

  const change = () => rmSync(place, { recursive: true });

  test('a job that runs goes on, one that waits gets its GPUs, and both end with their codes', async () => {
    const env = driver();
    const run = (...args: string[]) => machine.start([process.execPath, command(place), ...args], { env });
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
      const { stdout } = await finished(run('queue', '--json'));
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
