import { expect, test } from 'vitest';
import {
  Literal,
  parseValue,
  stringifyValue,
  type TaskSpec,
  taskId,
  type Values,
} from '../../../../lib/sweeps/task/index.ts';
import { pause } from '../../../support/machine.ts';
import { soakTest } from '../../../support/time.ts';
import { all, type Engine, type QueueFixture, rowOf, takeFrom } from '../conformance.ts';
import { plainTasks, spec } from '../fixtures/tasks.ts';

/** How tasks come in, and that they come in once. */
export function testEnqueue(fixture: () => QueueFixture, { batch }: Pick<Engine, 'batch'>): void {
  /** More than one batch. */
  const many = batch + 100;
  test('tasks get names of phase, counter and seed, which stay', async () => {
    const queue = await fixture().opened(
      spec({ width: 1, seed: 42 }),
      spec({ width: 2, seed: 43 }),
      spec({ width: 3 }, { phase: 'exp2' }),
    );
    await queue.enqueue([spec({ width: 4, seed: 1 }, { phase: 'exp2' })]);
    const names = (await all(queue.tasks())).map(({ task }) => task.name);
    expect(names).toEqual(['exp1_0_42', 'exp1_1_43', 'exp2_0', 'exp2_1_1']);
    const again = await fixture().open();
    expect(await again.enqueue([spec({ width: 9, seed: 0 }), spec({ width: 1, seed: 42 })])).toMatchObject({
      added: 1,
      known: 1,
      placed: 0,
    });
    expect((await all(again.tasks())).map(({ task }) => task.name)).toEqual([...names, 'exp1_2_0']);
  });

  test('enqueueing again does nothing, whatever has become of the task', async () => {
    const specs = ['pending', 'active', 'completed', 'failed', 'cancelled'].map((state) => spec({ state }));
    const queue = await fixture().opened(...specs);
    const attempts = [
      await takeFrom(queue),
      await takeFrom(queue),
      await takeFrom(queue),
      await takeFrom(queue),
    ];
    const tokens = attempts.map(({ token }) => token) as [string, string, string, string];
    await queue.complete(tokens[1], { accuracy: 0.5 });
    await queue.fail(tokens[2], { error: 'no use', retry: false });
    await queue.cancel({ ids: [(attempts[3] as (typeof attempts)[0]).task.id] });
    const before = await all(queue.tasks());
    expect(before.map(({ state }) => state)).toEqual([
      'active',
      'completed',
      'failed',
      'cancelled',
      'pending',
    ]);
    for (const other of [queue, await fixture().open()]) {
      expect(await other.enqueue(specs)).toMatchObject({ added: 0, known: 5, placed: 0 });
      expect(await all(other.tasks())).toEqual(before);
    }
    expect(await queue.complete(tokens[0], {})).toBe(true);
  });

  test('equal parameters are one task, with a destination for each phase and directory', async () => {
    const queue = await fixture().opened(
      spec({ lr: new Literal(1, '1.0'), seed: 1 }),
      spec(
        { seed: 1, lr: 1 },
        { phase: 'exp2', command: spec({ lr: new Literal(1, '1.0'), seed: 1 }).command },
      ),
    );
    const command = spec({ lr: new Literal(1, '1.0'), seed: 1 }).command;
    const destinations = [
      { phase: 'exp1', outputDirectory: 'results_exp1' },
      { phase: 'exp2', outputDirectory: 'results_exp1' },
      { phase: 'exp2', outputDirectory: 'results_exp2' },
    ];
    const third = spec({ lr: 1, seed: 1 }, { ...destinations[2], command });
    expect(await queue.enqueue([third, third])).toMatchObject({ added: 0, known: 2, placed: 1 });
    const [row, ...others] = await all(queue.tasks());
    expect(others).toEqual([]);
    expect(row?.task.destinations).toEqual(destinations);
    expect(stringifyValue(row?.task.parameters ?? null)).toBe('{"lr":1.0,"seed":1}');
  });

  test('equal parameters with different commands in one sweep are refused, and named', async () => {
    const queue = await fixture().opened(spec({ width: 2 }));
    const one = spec({ width: 1, seed: 5 });
    const other = spec({ width: 1, seed: 5 }, { command: { shell: 'python3 other.py' } });
    const error = await queue.enqueue([one, other]).catch((reason) => reason);
    expect(error.code).toBe('ERR_INVALID_ARGUMENT');
    expect(error.message).toMatch(/exp1: .*train\.py.*python3 other\.py/);
    expect(await queue.counts()).toMatchObject({ pending: 1 });
  });

  test('tasks that are neither active nor completed get the other command, of which the failed ones are named', async () => {
    const specs = [spec({ n: 0 }), spec({ n: 1 }), spec({ n: 2 }), spec({ n: 3 })];
    const queue = await fixture().opened(...specs);
    await takeFrom(queue);
    await queue.complete((await takeFrom(queue)).token, {});
    const failed = await takeFrom(queue);
    await queue.fail(failed.token, { error: 'no', retry: false });
    const command = { shell: 'echo "$GPU_OWNER_TASK"' };
    const changed = specs.map((each) => ({ ...each, command }));
    expect(await queue.enqueue(changed)).toEqual({
      ...{ added: 0, known: 4, placed: 0, replaced: 2, unreplaced: 2 },
      failed: [failed.task.id],
    });
    const commands = async () => (await all(queue.tasks())).map(({ task }) => task.command);
    const expected = [specs[0]?.command, specs[1]?.command, command, command];
    expect(await commands()).toEqual(expected);
    // In two phases, and in two batches.
    const elsewhere = changed.map((each) => ({ ...each, phase: 'exp2', outputDirectory: 'results_exp2' }));
    const between = plainTasks(batch);
    expect(await queue.enqueue([...changed, ...elsewhere, ...between, ...changed])).toEqual({
      ...{ added: batch, known: 12, placed: 4, replaced: 0, failed: [], unreplaced: 2 },
    });
    expect((await commands()).slice(0, 4)).toEqual(expected);
    // The first one keeps its command, whatever comes; what comes must be one.
    const back = [changed[0] as TaskSpec, specs[0] as TaskSpec];
    await expect(queue.enqueue(back)).rejects.toMatchObject({ code: 'ERR_INVALID_ARGUMENT' });
  });

  test('a task without a command takes the first that it is given, in whatever state; without one nothing changes', async () => {
    const specs = [spec({ n: 0 }), spec({ n: 1 }), spec({ n: 2 })];
    const without = specs.map((each) => ({ ...each, command: { words: [] } }));
    const queue = await fixture().opened(...without);
    await takeFrom(queue);
    await queue.complete((await takeFrom(queue)).token, {});
    const commands = async () => (await all(queue.tasks())).map(({ task }) => task.command);
    // In one sweep, too: a phase may have a command, and another one none.
    const mixed = specs.flatMap((each, at) => [without[at] as TaskSpec, each, without[at] as TaskSpec]);
    expect(await queue.enqueue(mixed)).toMatchObject({ added: 0, known: 9, placed: 0 });
    expect(await commands()).toEqual(specs.map(({ command }) => command));
    expect(await queue.enqueue(without)).toMatchObject({ added: 0, known: 3, replaced: 0, unreplaced: 0 });
    expect(await commands()).toEqual(specs.map(({ command }) => command));
    const fresh = spec({ n: 3 });
    const [bare, other] = [{ words: [] }, { words: ['other'] }].map((command) => ({ ...fresh, command }));
    expect(await queue.enqueue([bare as TaskSpec, fresh, bare as TaskSpec])).toMatchObject({
      added: 1,
      known: 2,
    });
    expect((await commands())[3]).toEqual(fresh.command);
    await expect(queue.enqueue([bare as TaskSpec, fresh, other as TaskSpec])).rejects.toMatchObject({
      code: 'ERR_INVALID_ARGUMENT',
    });
  });

  test('hostile words come out as they went in', async () => {
    const words = [
      "'; DROP TABLE task; --",
      '"',
      ':',
      '123',
      '',
      'Ünïcödé 🚀',
      'a\nb',
      'nul\0nul',
      '__proto__',
      '\ud800',
    ];
    const parameters = words.map((word) =>
      JSON.parse(`{"__proto__": 1, ${JSON.stringify(word)}: [${JSON.stringify(word)}]}`),
    );
    const specs = words.map((word, index) =>
      spec(parameters[index] as Values, {
        phase: word,
        outputDirectory: word,
        command: { words: [word, word] },
      }),
    );
    const queue = await fixture().opened(...specs);
    const rows = await all((await fixture().open()).tasks());
    expect(rows.map(({ task }) => stringifyValue(task.parameters))).toEqual(parameters.map(stringifyValue));
    expect(rows.map(({ task }) => task.destinations[0])).toEqual(
      words.map((word) => ({ phase: word, outputDirectory: word })),
    );
    expect(rows.map(({ task }) => task.command)).toEqual(specs.map(({ command }) => command));
    const names = rows.map(({ task }) => task.name);
    expect(new Set(names).size).toBe(words.length);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    for (const name of names) expect(name).not.toMatch(/[\0-\x1f/\\]|^[.-]|^$/);
    for (const { task } of rows) {
      const attempt = await takeFrom(queue);
      expect(attempt.task).toEqual(task);
      await queue.complete(attempt.token, JSON.parse(`{"__proto__": {"x": ${JSON.stringify(words[0])}}}`));
      expect((await rowOf(queue, task.id)).state).toBe('completed');
    }
    expect(await all(queue.tasks({ match: 'nul\0nul' }))).toEqual([]);
  });

  test('tasks whose names would be equal get different names', async () => {
    const queue = await fixture().opened(
      spec({ n: 0, seed: '1_5' }, { phase: 'a' }), // a_0_1_5
      spec({ n: 1, seed: 5 }, { phase: 'a_0' }),
      spec({ n: 2, seed: 5 }, { phase: 'a_0' }), // a_0_1_5, again
      spec({ n: 3 }, { phase: 'x/y' }),
      spec({ n: 4 }, { phase: 'x\\y' }),
    );
    const names = (await all(queue.tasks())).map(({ task }) => task.name);
    expect(names).toEqual(['a_0_1_5', 'a_0_0_5', 'a_0_2_5', 'x_y_0', 'x_y_1']);
  });

  test('numbers in results keep their spelling', async () => {
    const queue = await fixture().opened(spec({ n: 0 }));
    const result = parseValue(
      '{"loss": NaN, "lr": 1.0, "big": 12345678901234567890, "list": [1e-3, -Infinity, null]}',
    ) as Values;
    await queue.complete((await takeFrom(queue)).token, result);
    const [completion] = await queue.completions(0, 10);
    expect(stringifyValue(completion?.result ?? null)).toBe(stringifyValue(result));
    expect(completion?.task.id).toBe(taskId({ n: 0 }));
  });

  test('an enqueuing that is aborted, or fails in the middle, has done whole batches', async () => {
    const queue = await fixture().open();
    const controller = new AbortController();
    async function* slowly() {
      for (const task of plainTasks(many)) {
        if (task.parameters.width === batch + 50) controller.abort();
        yield task;
      }
    }
    await expect(queue.enqueue(slowly(), { signal: controller.signal })).rejects.toThrow();
    const { pending } = await queue.counts();
    expect(pending).toBeLessThan(many);
    expect(await queue.enqueue(plainTasks(many))).toMatchObject({
      added: many - pending,
      known: pending,
      placed: 0,
    });
  });

  soakTest('the next enqueuing does the rest of one that was killed', async () => {
    const queue = await fixture().open();
    const remote = await fixture().remote();
    const over = remote.ask('enqueueAllButLast', many, 'exp1').then(
      () => 'ended',
      (error: Error) => error.message,
    );
    const seen = async () => {
      while ((await queue.counts()).pending === 0) await pause(1);
      return 'seen';
    };
    expect(await Promise.race([seen(), over])).toBe('seen');
    await remote.kill();
    const { pending } = await queue.counts();
    expect(pending).toBeLessThan(many);
    expect(await queue.enqueue(plainTasks(many))).toMatchObject({
      added: many - pending,
      known: pending,
      placed: 0,
    });
    expect(await queue.counts()).toMatchObject({ pending: many });
    expect((await rowOf(queue, `exp1_${many - 1}_0`)).state).toBe('pending');
  });

  test('two processes that enqueue the same sweep make each task once', async () => {
    // In the long form, several batches of both.
    const count = process.env.GPU_OWNER_SOAK ? 2 * batch : 200;
    const remotes = [await fixture().remote(), await fixture().remote()];
    const added = await Promise.all(
      remotes.map((remote) => remote.ask<{ added: number }>('enqueue', count, 'exp1')),
    );
    expect(added.reduce((sum, each) => sum + each.added, 0)).toBe(count);
    const rows = await all((await fixture().open()).tasks());
    expect(new Set(rows.map(({ task }) => task.name)).size).toBe(count);
  });
}
