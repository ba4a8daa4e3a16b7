import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { actAs } from '../support/bundle.ts';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  python,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';
import type * as LogOpener from './fixtures/log-opener.ts';

/** The user who works; the other one attacks. */
const VICTIM = 54_321;
/** Shares a project with a member of its group. */
const GROUP = 54_400;
const MEMBER = 54_322;

const whyNot = whyNotNobody();

describe.skipIf(whyNot !== null)(
  `another user of the machine${whyNot === null ? '' : ` (${whyNot})`}`,
  () => {
    let machine: Machine;
    let project: string;
    let shared: string;
    let home: string;
    let treasure: string;

    beforeEach(() => {
      machine = new Machine(1);
      project = join(machine.directory, 'project');
      home = join(machine.directory, 'home');
      mkdirSync(project);
      chownSync(project, VICTIM, VICTIM);
      shared = join(machine.directory, 'shared');
      mkdirSync(shared);
      chmodSync(shared, 0o1777);
      mkdirSync(home);
      treasure = join(home, 'treasure');
      writeFileSync(treasure, 'mine\n');
      for (const path of [home, treasure]) chownSync(path, VICTIM, VICTIM);
    });
    afterEach(() => machine.close());

    const exp = (...args: string[]) =>
      machine.runCommand(['exp', ...args], { cwd: project, uid: VICTIM, env: { HOME: home } });
    const attack = async (shell: string) => {
      const { code, stderr } = await machine.run(['sh', '-c', shell], { cwd: shared, uid: NOBODY });
      expect(stderr).toBe('');
      expect(code).toBe(0);
    };
    const untouched = () => {
      expect(readFileSync(treasure, 'utf8')).toBe('mine\n');
      expect(readdirSync(home).filter((name) => !name.startsWith('.'))).toEqual(['treasure']);
    };
    const gridTo = (directory: string) => ['--grid', 'n=1', '--output-dir', directory, '--', 'echo', 'hello'];
    const GRID = gridTo('results');

    test('a project that everybody may write to, or exchange, is refused, and nothing in it is used', async () => {
      chmodSync(project, 0o1777);
      symlinkSync(treasure, join(project, 'experiment_manager.log'));
      const run = await exp('run', '--gpus', '1', ...GRID);
      expect(run).toMatchObject({
        code: 69,
        stderr: expect.stringMatching(/everybody may write to .*chmod o-w/),
      });
      chmodSync(project, 0o755);
      chmodSync(machine.directory, 0o777);
      const again = await exp('run', '--gpus', '1', ...GRID);
      chmodSync(machine.directory, 0o755);
      expect(again).toMatchObject({
        code: 69,
        stderr: expect.stringMatching(/everybody may replace what is in/),
      });
      expect(readdirSync(project)).toEqual(['experiment_manager.log']);
      untouched();
    });

    test('a user who has made the output directory is named, and gets nothing', async () => {
      await attack(
        `mkdir results && ln -s ${treasure} results/worker_gpu0.log && ln -s ${treasure} results/final_results.csv`,
      );
      const { code, stderr } = await exp('run', '--gpus', '1', ...gridTo(join(shared, 'results')));
      expect(stderr).toMatch(/shared\/results belongs to \S+ and is in a directory that everybody may write/);
      expect(code).toBe(78);
      untouched();
    });

    test('a user who makes the output directory later stops the worker, and gets nothing', async () => {
      const grid = gridTo(join(shared, 'results'));
      const manager = machine.startCommand(['exp', 'manager', '--no-listen', ...grid], {
        cwd: project,
        uid: VICTIM,
        env: { HOME: home },
      });
      await until(() => existsSync(join(project, 'experiment_manager.log')));
      await until(() => readFileSync(join(project, 'experiment_manager.log'), 'utf8').includes('Marked 0'));
      await attack(`mkdir results && ln -s ${treasure} results/worker_gpu0.log`);
      const { stdout, stderr } = await exp('worker');
      expect(stdout + stderr).toMatch(/its output can't be written: .*shared\/results belongs to/);
      manager.kill();
      untouched();
    });

    test('a link in the place of a log is not followed', async () => {
      for (const name of ['experiment_manager.log', 'worker_gpu0.log'])
        symlinkSync(treasure, join(project, name));
      const { stdout, stderr, code } = await exp('run', '--gpus', '1', ...gridTo('.'));
      expect(code).not.toBe(0);
      expect(stdout + stderr).toMatch(
        /experiment_manager\.log can't be written: .* is a symbolic link, which is not followed/,
      );
      expect(stdout + stderr).toMatch(/its output can't be written: .*worker_gpu0\.log is a symbolic link/);
      untouched();
    });

    test('a directory that changes places with a link all the time leads nobody astray', async () => {
      // Made beforehand, so that there is always something: a directory or a link.
      await attack('mkdir -m 777 results');
      const results = join(shared, 'results');
      const swapper = join(import.meta.dirname, '../integration/fixtures/swapper.py');
      const attacker = machine.start([python, swapper, home, '', 'results'], { cwd: shared, uid: NOBODY });
      const ended = finished(attacker);
      try {
        await output(attacker, /swapping/);
        const asVictim = actAs<typeof LogOpener>(VICTIM, 'test/sweeps/fixtures/log-opener.ts');
        const { met, ends } = await asVictim('openLogs', results, project, WAIT_TIMEOUT_MS);
        expect(met.sort()).toEqual(['directory', 'link']);
        expect(ends).toContain('unsafe');
      } finally {
        attacker.kill('SIGKILL');
      }
      await ended;
      untouched();
    });

    test('another user can lock no file of a queue, even of one that everybody could read before', async () => {
      const lock = join(import.meta.dirname, 'fixtures/lock_queue.py');
      const names = ['queue.db', 'queue.db-wal', 'queue.db-shm', 'queue.db-lock'];
      const held = async () =>
        (await machine.run([python, lock, ...names], { cwd: project, uid: NOBODY })).stdout;
      expect((await exp('run', '--gpus', '1', ...GRID)).code).toBe(0);
      expect(await held()).toBe('0\n');
      const state = join(project, '.gpu-owner');
      chmodSync(state, 0o755);
      for (const name of readdirSync(state))
        if (name.startsWith('queue')) chmodSync(join(state, name), 0o644);
      expect(await held()).not.toBe('0\n');
      expect((await exp('status')).code).toBe(0);
      expect(await held()).toBe('0\n');
    });

    test('members of the group that shares a project can work in it, and nobody else', async () => {
      chmodSync(project, 0o2770);
      chownSync(project, VICTIM, GROUP);
      const as = (uid: number, gid: number, ...args: string[]) =>
        machine.run(
          [
            'setpriv',
            `--reuid=${uid}`,
            `--regid=${gid}`,
            '--clear-groups',
            '--',
            process.execPath,
            command,
            'exp',
            ...args,
          ],
          { env: { HOME: uid === VICTIM ? home : undefined }, umask: '002' },
        );
      const there = ['--project', project];
      const run = await as(VICTIM, GROUP, 'run', '--gpus', '1', ...there, ...GRID);
      expect(run).toMatchObject({ code: 0 });
      const again = await as(
        MEMBER,
        GROUP,
        'run',
        '--gpus',
        '1',
        ...there,
        '--grid',
        'n=2',
        ...GRID.slice(2),
      );
      expect(again.stderr).toBe('');
      expect(again.code).toBe(0);
      expect((await as(VICTIM, GROUP, 'status', ...there)).stdout).toContain('2/2');
      expect((await as(NOBODY, NOBODY, 'status', ...there)).code).not.toBe(0);
    });

    test('a sweep that was started with umask 777 can be started again', async () => {
      const start = (n: string, umask: string) =>
        machine.run(
          [process.execPath, command, 'exp', 'run', '--gpus', '1', '--grid', `n=${n}`, '--', 'true'],
          { cwd: project, uid: VICTIM, env: { HOME: home }, umask },
        );
      expect(await start('1', '777')).toMatchObject({ code: 0, stderr: '' });
      expect(await start('1,2', '022')).toMatchObject({ code: 0, stderr: '' });
      const table = join(project, 'results_grid/final_results.csv');
      expect(readFileSync(table, 'utf8')).toBe('task_id,n\ngrid_0,1\ngrid_1,2\n');
      expect(lstatSync(table).mode & 0o777).toBe(0o600);
    });
  },
);
