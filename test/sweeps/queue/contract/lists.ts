import { expect, test } from 'vitest';
import { taskId } from '../../../../lib/sweeps/task/index.ts';
import { all, type QueueFixture, takeFrom } from '../conformance.ts';
import { plainTasks, spec } from '../fixtures/tasks.ts';

/** Tests what can be seen. */
export function testLists(fixture: () => QueueFixture): void {
  test('tasks are listed by state, name, id and beginning of an id, in the order of arrival', async () => {
    const queue = await fixture().open();
    await queue.enqueue(plainTasks(600));
    await queue.complete((await takeFrom(queue)).token, {});
    await takeFrom(queue);
    const names = async (which: Parameters<typeof queue.tasks>[0]) =>
      (await all(queue.tasks(which))).map(({ task }) => task.name);
    expect(await names({})).toEqual(Array.from({ length: 600 }, (_, n) => `exp1_${n}_${n % 3}`));
    expect(await names({ state: 'pending' })).toHaveLength(598);
    expect(await names({ state: 'completed' })).toEqual(['exp1_0_0']);
    expect(await names({ state: 'active' })).toEqual(['exp1_1_1']);
    expect(await names({ state: 'failed' })).toEqual([]);
    expect(await names({ match: 'exp1_7_1' })).toEqual(['exp1_7_1']);
    expect(await names({ match: 'exp1_7' })).toEqual([]);
    expect(await names({ match: 'exp1_7_1', state: 'completed' })).toEqual([]);
    const [first] = await all(queue.tasks({ state: 'completed' }));
    const id = first?.task.id as string;
    expect(await names({ match: id })).toEqual(['exp1_0_0']);
    expect(await names({ match: id.slice(0, 20) })).toEqual(['exp1_0_0']);
    expect(await names({ match: `${id}0` })).toEqual([]);
    for (const match of ['', '%', '_', "' OR 1=1 --", '*']) expect(await names({ match })).toEqual([]);
  });

  test('known tasks are looked up in their order', async () => {
    const queue = await fixture().opened(spec({ n: 0 }), spec({ n: 1 }));
    const rows = await queue.lookUp([taskId({ n: 1 }), 't-unknown', '', taskId({ n: 0 }), taskId({ n: 1 })]);
    expect(rows.map((row) => row?.task.name ?? null)).toEqual(['exp1_1', null, null, 'exp1_0', 'exp1_1']);
    expect(await queue.lookUp([])).toEqual([]);
  });

  test('completions come in portions', async () => {
    const queue = await fixture().open();
    await queue.enqueue(plainTasks(7));
    for (let n = 0; n < 7; n++) await queue.complete((await takeFrom(queue)).token, { n });
    const seen: unknown[] = [];
    for (let cursor = 0; ; ) {
      const some = await queue.completions(cursor, 3);
      if (some.length === 0) break;
      expect(some.length).toBeLessThanOrEqual(3);
      for (const { sequence, result } of some) {
        expect(sequence).toBeGreaterThan(cursor);
        cursor = sequence;
        seen.push(result.n);
      }
    }
    expect(seen.sort()).toEqual([0, 1, 2, 3, 4, 5, 6]);
  });

  test('large completions come in portions of a MiB, whoever sends them', async () => {
    const queue = await fixture().open();
    // Two fit.
    const text = (letter: string, bytes = 450_000) => letter.repeat(bytes);
    const tasks = ['a', 'b', 'c', 'd', 'e'].map((key) => spec({ key: text(key, 300_000) }));
    expect(await queue.enqueue(tasks)).toMatchObject({ added: 5 });
    const ids = tasks.map(({ parameters }) => taskId(parameters));
    expect((await all(queue.tasks())).map(({ task }) => task.id)).toEqual(ids);
    expect((await queue.lookUp([...ids, 't-x', ...ids])).map((row) => row?.task.id)).toEqual([
      ...ids,
      undefined,
      ...ids,
    ]);

    await queue.enqueue(plainTasks(5));
    const small = (await all(queue.tasks())).slice(5).map(({ task }) => task.id);
    await queue.cancel({ ids });
    const letters = ['v', 'w', 'x', 'y', 'z'];
    const rows = small.map((id, at) => ({ id, result: { text: text(letters[at] as string) } }));
    expect(await queue.importResults(rows)).toEqual([true, true, true, true, true]);
    const pages: string[][] = [];
    for (let cursor = 0; ; ) {
      const page = await queue.completions(cursor, 500);
      if (page.length === 0) break;
      cursor = page.at(-1)?.sequence as number;
      pages.push(page.map(({ result }) => (result.text as string).slice(0, 1)));
    }
    expect(pages.map((page) => page.length)).toEqual([2, 2, 1]);
    expect(pages.flat().sort()).toEqual(letters);
    await queue.retry({ state: 'completed' });
    expect((await queue.retracted()).map(({ id }) => id)).toEqual(small);

    // One that is larger than that comes alone.
    await queue.importResults([{ id: ids[0] as string, result: { text: text('A', 1_500_000) } }]);
    expect(await queue.completions(0, 5)).toHaveLength(1);
  });

  test('lists can be read while others change them', async () => {
    const queue = await fixture().open();
    await queue.enqueue(plainTasks(600));
    const seen = new Set<string>();
    for await (const { task } of queue.tasks()) {
      seen.add(task.id);
      if (seen.size % 100 === 0) await queue.complete((await takeFrom(queue)).token, {});
    }
    expect(seen.size).toBe(600);
    expect(await queue.counts()).toMatchObject({ pending: 594, completed: 6 });
  });
}
