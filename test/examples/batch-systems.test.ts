// examples/slurm and examples/sge, with the environment and the signals of these batch systems as they were seen in Slurm 22.05 and
// Grid Engine 8.1.9.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { parseDuration } from '../../lib/platform/quantities.ts';
import { processState, root, until, uuidOf } from '../support/machine.ts';
import { sendSignal, signalLiving } from '../support/processes.ts';
import { noRedis } from '../support/redis-server.ts';
import { Cluster } from './cluster.ts';

const SCRIPTS = ['slurm/worker.sh', 'slurm/manager.sh', 'sge/worker.sh', 'sge/manager.sh'];
const textOf = (name: string) => readFileSync(join(root, 'examples', name), 'utf8');
const secondsIn = (name: string, pattern: RegExp) => {
  const [, hours = '0', minutes = '0', seconds = '0'] = pattern.exec(textOf(name)) ?? [];
  return Number(hours) * 3600 + Number(minutes) * 60 + Number(seconds);
};

const noShellcheck = spawnSync('shellcheck', ['--version']).status !== 0;
test.skipIf(noShellcheck)('shellcheck has no complaint about the templates (needs shellcheck)', () => {
  const paths = [...SCRIPTS, 'docker.sh', 'worker.sh'].map((name) => join(root, 'examples', name));
  expect(spawnSync('shellcheck', paths, { encoding: 'utf8' }).stdout).toBe('');
});

test.each(['slurm/worker.sh', 'sge/worker.sh'])('tasks get less time to end than the job in %s', (name) => {
  const grace = parseDuration(/--grace (\S+)/.exec(textOf(name))?.[1] ?? '', '--grace') / 1000;
  const warning = name.startsWith('slurm')
    ? Number(/^#SBATCH --signal=B:TERM@(\d+)$/m.exec(textOf(name))?.[1])
    : secondsIn(name, /h_rt=(\d+):(\d+):(\d+)/) - secondsIn(name, /s_rt=(\d+):(\d+):(\d+)/);
  expect(grace).toBeGreaterThan(0);
  // SIGKILL for the task comes 10 s after its SIGTERM; and Slurm may be a minute late or early.
  expect(warning).toBeGreaterThanOrEqual(grace + 10 + 60);
});

describe.skipIf(noRedis !== null)(`with a Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let cluster: Cluster;
  beforeEach(async () => {
    cluster = await Cluster.open();
  });
  afterEach(() => cluster.close());

  const begin = async (template: string) => {
    const manager = cluster.submit(template, ['sh', 'train.sh', '{lr}']);
    await until(
      async () => (await cluster.status().catch(() => ({ counts: { pending: 0 } }))).counts.pending === 3,
    );
    return manager;
  };

  test('Slurm’s job ends with its warning and scancel, and others go on', async () => {
    const manager = await begin('slurm/manager.sh');
    const [first, second] = [2, 0].map((gpu) =>
      cluster.submit('slurm/worker.sh', [], { CUDA_VISIBLE_DEVICES: String(gpu) }),
    );
    const gpus = [await cluster.started(1), await cluster.started(2)];
    expect(gpus.sort()).toEqual([uuidOf(0), uuidOf(2)]);
    const { running } = await cluster.status();
    const taskOn = (gpu: number): number =>
      Number(
        /exp1_(\d)/.exec(running.find(({ gpus }: { gpus: string[] }) => gpus[0] === uuidOf(gpu)).name)?.[1],
      ) + 1;
    const [warned, cancelled] = [taskOn(2), taskOn(0)];

    // --signal=B:TERM@…: the batch script alone.
    signalLiving(first?.pid, 'SIGTERM');
    // scancel: all processes of the job, in whatever session.
    second?.kill('SIGTERM');
    second?.kill('SIGCONT');
    const killed = await second?.ended;
    expect(killed?.code, killed?.stderr).toBe(143);
    expect(killed?.stdout).toMatch(/requeued/);
    cluster.go(warned);
    const drained = await first?.ended;
    expect(drained?.code, drained?.stderr).toBe(143);
    expect(drained?.stdout).toMatch(/ending: .*\n.*Task exp1_\d\S* completed/);
    expect(drained?.stdout.match(/Assigned/g)).toHaveLength(1);

    cluster.go(cancelled);
    cluster.go(3);
    const third = cluster.submit('slurm/worker.sh', [], { CUDA_VISIBLE_DEVICES: '1' });
    expect((await third.ended).code).toBe(0);
    expect((await manager.ended).code).toBe(0);
    expect(cluster.rows()).toEqual(['1', '2', '3']);
    // Each machine has logs of its own.
    expect(readdirSync(join(cluster.project, 'results'))).toContain(`worker_${hostname()}_gpu1.log`);
    // Later jobs of the array find nothing to do.
    expect((await cluster.submit('slurm/worker.sh', [], { CUDA_VISIBLE_DEVICES: '1' }).ended).code).toBe(0);
  });

  test('Slurm’s job without a GPU takes none', async () => {
    const { code, stderr } = await cluster.submit('slurm/worker.sh').ended;
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/CUDA_VISIBLE_DEVICES: Slurm has given this job no GPU/);
  });

  test('Grid Engine’s job ends with s_rt and qdel, and others go on', async () => {
    const manager = await begin('sge/manager.sh');
    const [first, second] = [cluster.submit('sge/worker.sh'), cluster.submit('sge/worker.sh')];
    const gpus = [await cluster.started(1), await cluster.started(2)];
    expect(new Set(gpus).size).toBe(2);
    // To the process group of the script, and twice, as after s_rt and then -notify.
    signalLiving(-first.pid, 'SIGUSR1');
    signalLiving(-second.pid, 'SIGUSR1');
    sendSignal(-second.pid, 'SIGUSR2');
    const deleted = await second.ended;
    expect(deleted.code, deleted.stderr).toBe(143);
    expect(deleted.stdout).toMatch(/ending at once.*\n.*requeued/);
    for (const task of [1, 2, 3]) cluster.go(task);
    const drained = await first.ended;
    expect(drained.code, drained.stderr).toBe(143);
    expect(drained.stdout).toMatch(/ending: .*\n.*completed/);
    expect(drained.stdout.match(/Assigned/g)).toHaveLength(1);

    const third = cluster.submit('sge/worker.sh');
    expect((await third.ended).code).toBe(0);
    expect((await manager.ended).code).toBe(0);
    expect(cluster.rows()).toEqual(['1', '2', '3']);
    expect(processState(third.pid)).toBeNull();
  });
});
