// Early stopping, beside W&B's package.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parseSweepFile } from '../../../lib/sweeps/files/sources.ts';
import type { Space } from '../../../lib/sweeps/files/space.ts';
import { TrialCourse } from '../../../lib/sweeps/search/trial-course.ts';

test('W&B’s rule stops the runs that its package stops', async () => {
  const lines = readFileSync(join(import.meta.dirname, 'fixtures/wandb-stops.jsonl'), 'utf8')
    .trim()
    .split('\n');
  for (const line of lines) {
    const { rule, goal, histories, stopped } = JSON.parse(line);
    const file = `program: a
method: random
metric: {name: loss, goal: ${goal}}
early_terminate: ${JSON.stringify({ type: 'hyperband', ...rule })}
parameters: {a: {value: 1}}
`;
    const [sweep] = parseSweepFile(file, 'sweep.yaml', null, false);
    const stopping = (sweep as Space).earlyStopping;
    const search = {
      phase: 'p',
      trials: 9,
      metric: { name: 'loss', goal },
      stopping,
      seed: null,
      left: {},
      isOver: false,
    };
    const values = new Map<string, number>();
    const queue = {
      async report({ id, step, value }: { id: string; step: number; value: number }) {
        values.set(`${step} ${id}`, value);
        return Array.from(values).flatMap(([key, each]) =>
          key.startsWith(`${step} `) && key !== `${step} ${id}` ? [each] : [],
        );
      },
    };
    const look = async () => {
      const bad: number[] = [];
      for (const [id, history] of (histories as number[][]).entries()) {
        const course = new TrialCourse(search, String(id));
        for (const loss of history) course.note(null, { loss });
        if (await course.isBad(queue)) bad.push(id);
      }
      return bad;
    };
    await look(); // the last one to report is known to the first one, too
    expect(await look(), line).toEqual(stopped);
  }
});

test('a trial is compared at rungs only, with each of its news', async () => {
  const asked: { step: number; value: number }[] = [];
  const queue = {
    async report({ step, value }: { step: number; value: number }) {
      asked.push({ step, value });
      return [0.2];
    },
  };
  const course = new TrialCourse(
    {
      phase: 'p',
      trials: 10,
      metric: { name: 'loss', goal: 'minimize' },
      stopping: { rungs: [3, 9], eta: 3, strict: false },
      seed: null,
      left: {},
      isOver: false,
    },
    't-1',
  );
  course.note(1, { loss: 0.1 });
  course.note(2, { loss: 0.4, accuracy: 1 });
  expect(await course.isBad(queue)).toBe(false);
  expect(asked).toEqual([]); // nothing is stopped before the first rung
  course.note(3, { loss: 0.3 });
  expect(await course.isBad(queue)).toBe(false);
  expect(asked).toEqual([{ step: 3, value: 0.3 }]);
  expect(await course.isBad(queue)).toBe(false); // no news
  course.note(4, { loss: 0.5 });
  await course.isBad(queue);
  expect(asked.slice(1)).toEqual([{ step: 3, value: 0.3 }]); // others may be better by now
  expect(course.last).toEqual({ loss: 0.5, accuracy: 1 });
});
