import { join } from 'node:path';
import { DatabaseSync } from '@photostructure/sqlite';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { queueName, type RedisServer } from '../support/redis-server.ts';
import { KINDS } from './queue-kinds.ts';

/** Some tasks of a queue are damaged: every command does the rest, and shows no raw text. */

const ESCAPE = '\u001b]0;title\u0007';

describe.each(KINDS)('on $name', (kind) => {
  describe.skipIf(kind.missing !== null)('', () => {
    let experiment: Experiment;
    let server: RedisServer | null;
    let remove: () => Promise<void>;
    beforeEach(async () => {
      const queue = await kind.start();
      ({ server, remove } = queue);
      experiment = new Experiment(1, queue.env);
    });
    afterEach(async () => {
      await experiment.close();
      await remove();
    });

    /** Puts something else into a task's record. */
    function damage(name: string, field: string, value: string): void {
      if (server === null) {
        const database = new DatabaseSync(join(experiment.project, '.gpu-owner', 'queue.db'));
        database.prepare(`UPDATE task SET ${field} = :value WHERE name = :name`).run({ value, name });
        database.close();
      } else {
        const id = server.command('HGET', `gpu-owner-tasks:${queueName('test')}:names`, name).trim();
        const key = `gpu-owner:${queueName('test')}:${id}`;
        const data = JSON.parse(server.command('HGET', key, 'data'));
        if (field === 'result') server.command('HSET', key, 'returnvalue', value);
        else server.command('HSET', key, 'data', JSON.stringify({ ...data, [field]: value }));
      }
    }

    test('every command does the rest', async () => {
      const grid = ['--shell', '--', 'echo "{{\\"loss\\": {n}}}" > "$GPU_OWNER_RESULT"'];
      const run = async (...args: string[]) => {
        const finished = await experiment.run(args);
        const text = finished.stdout + finished.stderr;
        expect(text, args.join(' ')).not.toMatch(/^\s+at |Error:/m);
        // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
        expect(text, args.join(' ')).not.toMatch(/[\x00-\x09\x0b-\x1f\x7f]/);
        return finished;
      };
      expect((await run('run', '--gpus', '1', '--grid', 'n=1..3', ...grid)).code).toBe(0);
      damage('grid_0', 'result', `{"loss": ${ESCAPE}`);
      const manager = experiment.start(['manager', '--no-listen', '--grid', 'n=4..7', ...grid]);
      const ended = new Promise((resolve) => manager.once('exit', resolve));
      while (!(await run('status')).stdout.includes('4 waiting')) {}
      manager.kill();
      await ended;
      damage('grid_3', 'parameters', `{"n": ${ESCAPE}`);
      damage('grid_4', 'command', ESCAPE);
      damage('grid_5', 'places', '[[5]]');

      expect((await run('status')).code).toBe(0);
      expect((await run('run', '--dry-run', '--grid', 'n=1..9')).code).toBe(0);
      const again = await run('run', '--gpus', '1');
      expect(again.stdout).toMatch(/grid_3: its record in the queue is damaged \(parameters\)/);
      expect(again.stdout).toMatch(/7 tasks: 4 completed, 3 failed/);
      expect(again.code).toBe(1);
      expect(experiment.rows('results_grid')).toHaveLength(4);
      const status = await run('status', '--json');
      expect(JSON.parse(status.stdout)).toMatchObject({ counts: { completed: 4, failed: 3 } });

      for (const format of ['csv', 'jsonl']) {
        const exported = await run('export', '--format', format);
        expect(exported.code).toBe(69);
        expect(exported.stderr).toMatch(
          /damaged records, which were left out. grid_0: its record .*\(result\)/,
        );
        expect(exported.stdout.trim().split('\n')).toHaveLength(format === 'csv' ? 4 : 3);
      }
      expect((await run('logs', 'grid_3')).code).toBe(0);
      expect((await run('logs', 'grid_0')).code).toBe(0);
      expect((await run('pause')).code).toBe(0);
      expect((await run('resume')).code).toBe(0);
      expect((await run('retry', 'failed')).stdout).toMatch(/3 tasks/);
      expect((await run('worker')).code).toBe(0);
      expect((await run('retry', 'failed', 'grid_0')).stdout).toMatch(/4 tasks/);
      expect((await run('cancel', 'all')).code).toBe(0);
      expect((await run('status')).stdout).toMatch(/3 completed/);
    }, 120_000);
  });
});
