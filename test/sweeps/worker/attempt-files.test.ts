// Files that killed attempts leave in .gpu-owner/attempts are removed, as soon as no process of them lives.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Experiment } from '../../support/experiment.ts';
import { finished, until } from '../../support/machine.ts';
import { processesOf } from '../processes.ts';

let experiment: Experiment;
beforeEach(() => {
  experiment = new Experiment(2);
});
afterEach(() => experiment.close());

const directories = () => readdirSync(join(experiment.project, '.gpu-owner/attempts'));
const words = (...more: string[]) => ['run', '--gpus', '1', '--grid', 'a=1', ...more];

async function kill(args: string[]): Promise<void> {
  const run = experiment.start(args);
  await experiment.untilStarted(1);
  run.kill('SIGKILL');
  await until(() => processesOf(experiment.machine).length === 0);
  expect(directories()).toHaveLength(1);
}

test('files of a task that is started again are removed', async () => {
  await kill(words(...experiment.train('--wait-for', 'go', 'x=1')));
  writeFileSync(join(experiment.project, 'go'), '');
  const { code } = await experiment.run(['run', '--gpus', '1']);
  expect(code).toBe(0);
  expect(directories()).toEqual([]);
});

test('files of a task that is never started again are removed', async () => {
  await kill(words(...experiment.train('--wait-for', 'go', 'x=1')));
  expect((await experiment.run(['cancel', 'all'])).code).toBe(0);
  await experiment.run(['run', '--gpus', '1', '--grid', 'b=1', '--', 'true']);
  expect(directories()).toEqual([]);
});

test('files of an attempt that lives, and results that are kept, are not removed', async () => {
  const first = finished(experiment.start(words(...experiment.train('--wait-for', 'go', 'x=1'))));
  await experiment.untilStarted(1);
  const [living] = directories();
  const broken = ['--queue', 'sqlite:other.db', '--shell', '--', 'echo [] > $GPU_OWNER_RESULT'];
  expect((await experiment.run(words(...broken))).code).toBe(1);
  expect(directories()).toContain(living);
  expect(directories()).toHaveLength(2);
  writeFileSync(join(experiment.project, 'go'), '');
  const { code, stdout, stderr } = await first;
  expect(code, stdout + stderr).toBe(0);
  // The kept one, also after everybody has tidied up once more.
  await experiment.run(['run', '--gpus', '1', '--grid', 'b=1', '--', 'true']);
  expect(directories()).toHaveLength(1);
  expect(directories()).not.toContain(living);
});
