// docs/recipes.md: torchrun, Ray, and the recipe for wandb, with the real libraries. They are about 6 GB: `npm run test:recipes`.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { finished, output, python, until, uuidOf } from '../support/machine.ts';
import { fence } from '../support/pages.ts';
import { freePort } from '../support/ports.ts';
import { signalLiving } from '../support/processes.ts';
import { fixture, install, Lab } from './recipes.ts';

const { venv, missing } = process.env.GPU_OWNER_RECIPES
  ? install('requirements-frameworks.txt', 1_200)
  : { venv: null, missing: 'only in `npm run test:recipes`' };

const line = (heading: string) => fence('recipes.md', 'sh', `## ${heading}`).trim();

describe.skipIf(missing !== null)(
  `with frameworks from PyPI${missing === null ? '' : `: ${missing}`}`,
  () => {
    let lab: Lab;
    afterEach(() => lab.close());
    const isFree = async () => (await lab.machine.states()).every((state) => state === 'free');
    const both = [uuidOf(0), uuidOf(1)].join(',');
    const expectOneEach = (gpus: number) => {
      const byProcess = [...lab.gpusOf().values()];
      expect(byProcess.map(({ size }) => size)).toEqual(byProcess.map(() => 1));
      expect(new Set(byProcess.flatMap((one) => [...one])).size).toBe(gpus);
    };

    describe('ranks', () => {
      const open = () => {
        lab = new Lab(venv as string, 4);
        lab.hideCuda(venv as string, ['python', 'torchrun']);
      };

      test('of torchrun see the GPUs of one claim, and compute together', async () => {
        open();
        const { code, stdout, stderr } = await lab.run(line('torchrun'));
        expect(code, stderr).toBe(0);
        const ranks = stdout.split('\n').filter((each) => each.startsWith('rank '));
        expect(ranks.sort()).toEqual([`rank 0 of 2: 3.0 on ${both}`, `rank 1 of 2: 3.0 on ${both}`]);
        await until(isFree);
      });

      test('of torchrun keep the GPUs until the last has ended, whichever is killed', async () => {
        open();
        const program =
          'import os, time\nopen(f"rank{os.environ[\'RANK\']}", "w").write(str(os.getpid()))\ntime.sleep(600)\n';
        writeFileSync(join(lab.directory, 'waits.py'), program);
        const words = line('torchrun').replace('torchrun_train.py', 'waits.py');
        const child = lab.machine.start(lab.words(words.replace(/--\s/, '-- setsid ')), {
          env: lab.env,
          cwd: lab.directory,
        });
        const end = finished(child, 'exit');
        const pids = () =>
          [0, 1].map((rank) => {
            try {
              return Number(readFileSync(join(lab.directory, `rank${rank}`), 'utf8'));
            } catch {
              return 0;
            }
          });
        await until(() => pids().every((pid) => pid > 0), 60_000);
        const parent = Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pids()[0]}/status`, 'utf8'))?.[1]);
        signalLiving(parent, 'SIGKILL');
        await end;
        expect((await lab.machine.states()).filter((state) => state === 'leased')).toHaveLength(2);
        for (const pid of pids()) signalLiving(pid, 'SIGKILL');
        await until(isFree);
      });
    });

    describe('Ray', () => {
      test('gives each task one of the claimed GPUs', async () => {
        lab = new Lab(venv as string, 3, 2);
        const { code, stdout, stderr } = await lab.run(line('Ray'));
        expect(code, stderr).toBe(0);
        expect(stdout).toContain('[0.0081');
        expect(lab.trainings()).toHaveLength(4);
        expectOneEach(2);
        await until(isFree);
      });

      test('calls GPUs by UUID, refuses more than were claimed, and keeps them while a process of it lives', async () => {
        lab = new Lab(venv as string, 3, 1);
        const child = lab.machine.start(
          lab.words(`gpu-owner run -n 2 -- python '${fixture('ray_ids.py')}'`),
          {
            env: lab.env,
            cwd: lab.directory,
          },
        );
        const end = finished(child, 'exit');
        const printed = await output(child, /\w+ 2\.0 .*\n/, 60_000);
        expect(printed).toMatch(
          new RegExp(`^ValueError 2\\.0 \\(\\['(${uuidOf(0)}|${uuidOf(1)})'\\], '\\1'\\)`),
        );
        signalLiving(Number(printed.trim().split(' ').at(-1)), 'SIGKILL');
        await end;
        expect((await lab.machine.states()).filter((state) => state === 'leased')).toHaveLength(2);
        // The agents of Ray notice after a minute.
        await until(isFree, 180_000);
      }, 300_000);

      test('as a cluster is a job, which can be cancelled', async () => {
        lab = new Lab(venv as string, 3, 1);
        const submit = fence('recipes.md', 'sh', 'For a cluster that outlives').trim();
        const options = `--port ${await freePort()} --include-dashboard=false`;
        const { code, stdout, stderr } = await lab.run(
          `${submit} ${options}\npython '${fixture('ray_client.py')}'`,
        );
        expect(code, stderr).toBe(0);
        expect(stdout).toBe('1\n2.0\n');
        const cancelled = await lab.run('gpu-owner cancel ray');
        expect(cancelled.code, cancelled.stderr).toBe(0);
        await until(isFree, 60_000);
      });
    });

    describe('wandb', () => {
      const agents = async (heading: string, config: (text: string) => string) => {
        lab = new Lab(venv as string, 2);
        const file = join(lab.directory, 'wandb_sweep.yaml');
        writeFileSync(file, config(readFileSync(file, 'utf8')));
        const server = lab.machine.start([
          python,
          join(import.meta.dirname, 'fixtures/wandb_server.py'),
          file,
        ]);
        const url = await output(server, /http.*/);
        const env = { WANDB_BASE_URL: url, WANDB_API_KEY: `local-${'0'.repeat(40)}`, WANDB_MODE: 'offline' };
        const run = await lab.run(heading.replace('ENTITY/PROJECT/SWEEP', 'me/project/sweep'), env);
        expect(run.code, run.stderr).toBe(0);
        expect(
          lab
            .trainings()
            .map(({ lr }) => lr)
            .sort(),
        ).toEqual([0.003, 0.01, 0.03, 0.1]);
        expectOneEach(2);
        await until(isFree);
        return run.stdout + run.stderr;
      };
      const words = line('One GPU per wandb agent');

      test('has one GPU for each agent', async () => {
        const said = await agents(words, (text) => text.replace(/^command: .*$/m, ''));
        expect(said).toMatch(/About to run command: \/usr\/bin\/env python wandb_train\.py/);
      });

      test('has one GPU for each run', async () => {
        const said = await agents(words.replace('gpu-owner run -- ', ''), (text) => text);
        expect(said).toMatch(/About to run command: gpu-owner run -- python wandb_train\.py/);
      });
    });
  },
);
