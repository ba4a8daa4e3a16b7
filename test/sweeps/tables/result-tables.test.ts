import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ResultTables } from '../../../lib/sweeps/tables/result-tables.ts';
import type { Task } from '../../../lib/sweeps/task/index.ts';
import { FakeQueue, values } from './fake-queue.ts';

let project: string;
let queue: FakeQueue;
let told: string[];
let tables: ResultTables;

beforeEach(() => {
  project = mkdtempSync(join(tmpdir(), 'tables-'));
  queue = new FakeQueue();
  told = [];
  restart();
});

afterEach(() => {
  rmSync(project, { recursive: true, force: true });
});

function restart(): void {
  tables = new ResultTables(queue.queue, project, (message) => told.push(message));
}

/** Looks at the tables: tasks that their rows complete, lost rows that are there again, and what is wrong with them. */
async function sync(): Promise<{ imported: number; restored: number; problems: string[] }> {
  const [imported, from] = [queue.imported, told.length];
  await tables.sync();
  const { unreadable, unwritable } = tables.tableState;
  return {
    imported: queue.imported - imported,
    restored: told
      .slice(from)
      .flatMap((text) => /the rows? of (.*), completed earlier/.exec(text)?.[1]?.split(/, | and /) ?? [])
      .length,
    problems: [...unreadable, ...unwritable].map(({ why }) => why),
  };
}

function add(json: string, outputDirectory = 'results_a', phase = 'exp1') {
  return queue.add({ parameters: values(json), outputDirectory, phase });
}

function path(directory = 'results_a'): string {
  return join(project, directory, 'final_results.csv');
}

function put(text: string | Buffer, directory = 'results_a'): void {
  mkdirSync(dirname(path(directory)), { recursive: true });
  writeFileSync(path(directory), text);
}

function read(directory = 'results_a'): string {
  return readFileSync(path(directory), 'utf8');
}

describe('a table of results', () => {
  test('has the name, the parameters and the result of every completed task', async () => {
    const one = add('{"dataset": "mnist", "lr": 1e-3, "seed": 42}');
    const two = add('{"dataset": "mnist", "lr": 1.0, "layers": [64, 2.0], "seed": 43}');
    add('{"dataset": "mnist", "lr": 5, "seed": 44}');
    await tables.sync();
    expect(existsSync(path())).toBe(false);
    queue.complete(one.id, values('{"accuracy": 0.90, "note": "say \\"a, b\\"\\nbye", "ok": true}'));
    expect(await sync()).toEqual({ imported: 0, restored: 0, problems: [] });
    queue.complete(two.id, values('{"accuracy": NaN}'));
    await tables.sync();
    expect(read()).toBe(
      'task_id,dataset,lr,seed,layers,accuracy,note,ok\n' +
        'exp1_0,mnist,1e-3,42,,0.90,"say ""a, b""\nbye",true\n' +
        'exp1_1,mnist,1.0,43,"[64,2.0]",NaN,,\n',
    );
    restart();
    expect(await sync()).toEqual({ imported: 0, restored: 0, problems: [] });
    expect(told).toEqual([]);
  });

  test('is appended to, and rewritten only for new columns', async () => {
    const tasks = [1, 2, 3].map((seed) => add(`{"seed": ${seed}}`));
    queue.complete(tasks[0]?.id as string, { loss: 1 });
    await tables.sync();
    const { ino } = statSync(path());
    queue.complete(tasks[1]?.id as string, { loss: 2 });
    await tables.sync();
    expect(statSync(path()).ino).toBe(ino);
    chmodSync(path(), 0o640);
    queue.complete(tasks[2]?.id as string, { accuracy: 3 });
    await tables.sync();
    expect(read()).toBe('task_id,seed,loss,accuracy\nexp1_0,1,1,\nexp1_1,2,2,\nexp1_2,3,,3\n');
    expect(statSync(path()).mode & 0o777).toBe(0o640);
    expect(readdirSync(dirname(path()))).toEqual(['final_results.csv']);
  });

  test('keeps results apart that are called as parameters are', async () => {
    const task = add('{"lr": 1.0, "width": 2}');
    add('{"depth": 1}');
    queue.complete(
      task.id,
      values('{"lr": 1, "width": 3, "depth": 5, "task_id": 7, " lr ": 0, "result_width": 9}'),
    );
    await tables.sync();
    expect(read()).toBe(
      'task_id,lr,width,depth,result_width,result_depth,result_task_id,result_lr,result_result_width\nexp1_0,1.0,2,,3,5,7,0,9\n',
    );
    restart();
    expect(await sync()).toMatchObject({ restored: 0, problems: [] });
  });

  test('has rows that are found again, whatever their values', async () => {
    const strings = [
      '"1.0"',
      '"yes"',
      '"\\u0000x"',
      '" a "',
      '"None"',
      '"[1, 2"',
      '"\\ud800"',
      '"é\\r"',
      '"\\""',
      '"-"',
    ];
    const tasks = strings.map((text) =>
      add(`{"value": ${text}, " k": {"b": 1.50, "a": ${text}}, "task_id": 1}`),
    );
    await tables.sync();
    for (const task of tasks) queue.complete(task.id, values('{"": "\\u0000", "x": "\\r\\n"}'));
    await tables.sync();
    const before = read();
    restart();
    expect(await sync()).toEqual({ imported: 0, restored: 0, problems: [] });
    expect(read()).toBe(before);
    expect(told).toEqual([]);
  });

  test('has a row of a task of several phases in each of their directories', async () => {
    const task = add('{"seed": 1}');
    add('{"seed": 1.0}', 'deep/er/results_b', 'exp2');
    await tables.sync();
    queue.complete(task.id, { loss: 1 });
    await tables.sync();
    expect(read('deep/er/results_b')).toBe('task_id,seed,loss\nexp1_0,1,1\n');
    add('{"seed": 1}', 'results_c', 'exp3');
    add('{"seed": 1}', 'results_c/../results_a/', 'exp4');
    tables.rereadQueue();
    expect(await sync()).toMatchObject({ restored: 0 });
    expect(read('results_c')).toBe(read());
  });
});

describe('a file of somebody else', () => {
  const row = 'mnist,1,0.9';

  test.each([
    [
      'as it should be',
      `dataset,seed,accuracy\n${row}\n`,
      'dataset,seed,accuracy,task_id\nmnist,1,0.9,\nmnist,2,0.5,exp1_1\n',
    ],
    [
      'CRLF and a byte order mark',
      `\ufeffdataset,seed,accuracy\r\n${row}\r\n`,
      '\ufeffdataset,seed,accuracy,task_id\r\nmnist,1,0.9,\r\nmnist,2,0.5,exp1_1\r\n',
    ],
    [
      'no line break at the end',
      `dataset,seed,accuracy,task_id\n${row},x`,
      `dataset,seed,accuracy,task_id\n${row},x\nmnist,2,0.5,exp1_1\n`,
    ],
    [
      'no line break at the end, and a column that is missing',
      `dataset,seed,accuracy\n${row}`,
      `dataset,seed,accuracy,task_id\n${row},\nmnist,2,0.5,exp1_1\n`,
    ],
    [
      'blank lines',
      `\n\ndataset,seed,accuracy,task_id\n\n${row},\n  `,
      `\n\ndataset,seed,accuracy,task_id\n\n${row},\n  \nmnist,2,0.5,exp1_1\n`,
    ],
    [
      'more columns',
      `,dataset,seed,who,accuracy,task_id\n7, mnist ,1.0,"a\n""b""",0.9,\n`,
      ',dataset,seed,who,accuracy,task_id\n7, mnist ,1.0,"a\n""b""",0.9,\n,mnist,2,,0.5,exp1_1\n',
    ],
    [
      'quotes where none belong',
      'dataset,seed,accuracy,task_id,size\nmnist,1,0.9,,5"\n',
      'dataset,seed,accuracy,task_id,size\nmnist,1,0.9,,5"\nmnist,2,0.5,exp1_1,\n',
    ],
    [
      'zeros at the end',
      Buffer.from(`dataset,seed,accuracy,task_id\n${row},\n\0\0\0\0`),
      `dataset,seed,accuracy,task_id\n${row},\nmnist,2,0.5,exp1_1\n`,
    ],
  ])('keeps its form: %s', async (_, text, after) => {
    const one = add('{"dataset": "mnist", "seed": 1}');
    const two = add('{"dataset": "mnist", "seed": 2}');
    put(text);
    expect(await sync()).toMatchObject({ imported: 1, restored: 0, problems: [] });
    expect(queue.get(one.id)).toMatchObject({
      state: 'completed',
      source: 'table',
      result: { accuracy: 0.9 },
    });
    expect(read()).toBe(String(text));
    queue.complete(two.id, { accuracy: 0.5 });
    await tables.sync();
    expect(read()).toBe(after);
    restart();
    expect(await sync()).toEqual({ imported: 0, restored: 0, problems: [] });
    expect(told).toEqual([]);
  });

  test.each([
    ['', 'task_id,dataset,seed,accuracy\nexp1_0,mnist,1,0.5\n'],
    ['\ufeff', '\ufefftask_id,dataset,seed,accuracy\nexp1_0,mnist,1,0.5\n'],
    ['\n', 'task_id,dataset,seed,accuracy\nexp1_0,mnist,1,0.5\n'],
    ['seed,task_id,dataset,accuracy', 'seed,task_id,dataset,accuracy\n1,exp1_0,mnist,0.5\n'],
    ['seed\r\n', 'seed,task_id,dataset,accuracy\r\n1,exp1_0,mnist,0.5\r\n'],
  ])('without rows gets ours: %j', async (text, after) => {
    const task = add('{"dataset": "mnist", "seed": 1}');
    put(text);
    await tables.sync();
    queue.complete(task.id, { accuracy: 0.5 });
    await tables.sync();
    expect(read()).toBe(after);
  });

  test.each([
    ['seed,a\n1,"x" y\n', 2, 'after a closing quote'],
    ['seed,a\n1,\0\n', 2, 'NUL'],
    [Buffer.from([...Buffer.from('seed,a\n1,x\n2,'), 0xe9, 0x0a]), 3, 'UTF-8'],
    [Buffer.from([...Buffer.from('seed,a\n1,x\n2,caf'), 0xe9, 0x73]), 3, 'UTF-8'],
    [Buffer.from([...Buffer.from('seed,a\n2,caf'), 0xc3]), 2, 'cut off'],
    [Buffer.from([...Buffer.from('seed,caf'), 0xc3]), 1, 'cut off'],
    ['seed,a,a\n1,2,3\n', 1, "two columns are named 'a'"],
    ['seed;a\n1;2\n', 1, 'semicolons'],
    ['seed\ta\n1\t2\n', 1, 'tabs'],
    ['1,2\n1,3\n', 1, 'no column is'],
    ['seed,a\r1,2\r3,4\n', 1, 'carriage return'],
    ['seed,"a\n', 1, 'cut off'],
  ])('%j is left alone, with a message', async (text, line, what) => {
    const task = add('{"seed": 1}');
    queue.complete(task.id, { a: 1 });
    put(text);
    for (let time = 0; time < 3; time++) {
      expect((await sync()).problems).toEqual([expect.stringContaining(what)]);
    }
    expect(readFileSync(path())).toEqual(Buffer.from(text));
    expect(told).toEqual([expect.stringContaining(`results_a/final_results.csv:${line}: `)]);
    rmSync(path());
    expect(await sync()).toMatchObject({ problems: [] });
    expect(read()).toBe('task_id,seed,a\nexp1_0,1,1\n');
  });

  test.each(['directory', 'FIFO', 'link to nothing'])(
    'a %s in place of the table is named, and results wait',
    async (kind) => {
      const task = add('{"seed": 1}');
      const other = add('{"seed": 2}', 'results_b');
      queue.complete(task.id, { a: 1 });
      queue.complete(other.id, { a: 1 });
      mkdirSync(dirname(path()), { recursive: true });
      if (kind === 'directory') mkdirSync(path());
      else if (kind === 'FIFO') execFileSync('mkfifo', [path()]);
      else symlinkSync('nowhere', path());
      expect((await sync()).problems).toHaveLength(1);
      await tables.sync();
      expect(told.filter((message) => message.startsWith('results_a/'))).toHaveLength(1);
      expect(read('results_b')).toContain('exp1_1');
      rmSync(path(), { recursive: true });
      expect(await sync()).toMatchObject({ problems: [] });
      expect(read()).toContain('exp1_0');
    },
  );

  test('a link to a file stays one', async () => {
    const task = add('{"seed": 1}');
    put('seed\n5\n', 'elsewhere');
    mkdirSync(dirname(path()));
    symlinkSync('../elsewhere/final_results.csv', path());
    queue.complete(task.id, { a: 1 });
    await tables.sync();
    expect(read('elsewhere')).toBe('seed,task_id,a\n5,,\n1,exp1_0,1\n');
    expect(told).toHaveLength(2);
  });

  test('a file in place of the directory is named, and results wait', async () => {
    const task = add('{"seed": 1}');
    writeFileSync(join(project, 'results_a'), '');
    queue.complete(task.id, { a: 1 });
    await tables.sync();
    await tables.sync();
    expect(told).toEqual([expect.stringContaining('there is a file in place of its directory')]);
  });
});

describe('a last line that was cut', () => {
  test('is mended wherever it was cut, where we wrote it', async () => {
    const one = add('{"name": "a,\\né", "seed": 1}');
    const two = add('{"name": "b,\\né", "seed": 2}');
    queue.complete(one.id, values('{"note": "x\\"y", "loss": 0.25}'));
    queue.complete(two.id, values('{"note": "x\\"y", "loss": 0.75}'));
    await tables.sync();
    const whole = readFileSync(path());
    const header = whole.indexOf(0x0a) + 1;
    for (let end = header; end < whole.length; end++) {
      for (const zeros of [0, 3]) {
        writeFileSync(path(), Buffer.concat([whole.subarray(0, end), Buffer.alloc(zeros)]));
        // As if long ago: what changed just now is waited for.
        utimesSync(path(), 1, 1);
        restart();
        expect((await sync()).problems).toEqual([]);
        expect(read().trimEnd()).toBe(whole.toString().trimEnd());
      }
    }
  });

  test('is left alone where it is somebody else’s, and the results wait', async () => {
    const task = add('{"seed": 1, "width": 2}');
    const other = add('{"seed": 3, "width": 2}', 'results_b');
    put('seed,width,loss\n5,6,7\n8,');
    queue.complete(task.id, { loss: 1 });
    queue.complete(other.id, { loss: 1 });
    expect(await sync()).toMatchObject({
      restored: 1,
      problems: [expect.stringContaining('csv:3: the last line')],
    });
    await tables.sync();
    expect(told.filter((message) => message.includes('cut off'))).toHaveLength(1);
    expect(read()).toBe('seed,width,loss\n5,6,7\n8,');
    put('seed,width,loss\n5,6,7\n8,9,10\n');
    expect(await sync()).toMatchObject({ restored: 1, problems: [] });
    expect(read()).toBe('seed,width,loss,task_id\n5,6,7,\n8,9,10,\n1,2,1,exp1_0\n');
  });
});

describe('a row with more cells than there are columns', () => {
  test('is named and stays, and keeps rows with new columns waiting until somebody corrects it', async () => {
    for (const [seed, result] of ['{"loss": 1}', '{"loss": 2, "late": 7}'].entries())
      queue.complete(add(`{"seed": ${seed}}`).id, values(result));
    // An editor has put an older header back.
    const text = 'task_id,seed,loss\nexp1_1,1,2,7\n';
    put(text);
    expect(await sync()).toMatchObject({
      restored: 0,
      problems: [expect.stringContaining('values beyond the last column')],
    });
    expect(read()).toBe(text);
    expect(told.join()).toMatch(
      /csv:2: this row has values beyond the last column, so no column can be added \(late\)/,
    );
    put('task_id,seed,loss,late\nexp1_1,1,2,7\n');
    expect(await sync()).toMatchObject({ restored: 1, problems: [] });
    expect(read()).toBe('task_id,seed,loss,late\nexp1_1,1,2,7\nexp1_0,0,1,\n');
  });
});

describe('rows that come and go', () => {
  test('rows that the file lost are restored, with a word on how to run tasks again', async () => {
    const tasks = [1, 2, 3].map((seed) => add(`{"seed": ${seed}}`));
    for (const { id } of tasks) queue.complete(id, { loss: 1 });
    await tables.sync();
    told.length = 0;
    writeFileSync(path(), 'task_id,seed,loss,mine\nexp1_1,2,1,x\n,9,9,y\n');
    expect(await sync()).toMatchObject({ restored: 2 });
    expect(read()).toBe('task_id,seed,loss,mine\nexp1_1,2,1,x\n,9,9,y\nexp1_0,1,1,\nexp1_2,3,1,\n');
    expect(told.find((message) => message.includes('restored') || message.includes('missing'))).toMatch(
      /exp1_0 and exp1_2.*gpu-owner exp retry exp1_0$/,
    );
    rmSync(path());
    expect(await sync()).toMatchObject({ restored: 3 });
    rmSync(path());
    restart();
    expect(await sync()).toMatchObject({ restored: 3 });
    writeFileSync(`${path()}.new`, read().replace('exp1_1,2,1\n', ''));
    renameSync(`${path()}.new`, path());
    expect(await sync()).toMatchObject({ restored: 1 });
  });

  test('retracted rows are taken out, also those of others, and come again with the new result', async () => {
    const one = add('{"seed": 1}');
    const two = add('{"seed": 2}');
    put('seed,loss,note\n1,0.5,"a\nb"\n2,0.6,\n3,0.7,"c ""d"""\n');
    await tables.sync();
    queue.retry(one.id);
    expect(await sync()).toMatchObject({ imported: 0, restored: 0 });
    expect(read()).toBe('seed,loss,note\n2,0.6,\n3,0.7,"c ""d"""\n');
    expect(await queue.retracted()).toEqual([]);
    queue.complete(one.id, { loss: 4 });
    expect(await sync()).toMatchObject({ restored: 0 });
    // Retried and completed again before anybody looked.
    queue.retry(two.id);
    queue.complete(two.id, { loss: 5 });
    queue.retry(one.id);
    queue.complete(one.id, { loss: 6 });
    restart();
    expect(await sync()).toMatchObject({ restored: 0, imported: 0 });
    queue.retry(one.id);
    queue.complete(one.id, { loss: 7 });
    await tables.sync();
    expect(read()).toBe('seed,loss,note,task_id\n3,0.7,"c ""d""",\n2,5,,exp1_1\n1,7,,exp1_0\n');
  });

  test('a row of a task that runs counts if the task fails, and instead of a second one if it is done', async () => {
    const one = add('{"seed": 1}');
    const two = add('{"seed": 2}');
    queue.set(one.id, 'active');
    queue.set(two.id, 'active');
    put('seed,loss\n1,0.5\n2,0.6\n');
    expect(await sync()).toMatchObject({ imported: 0 });
    queue.set(one.id, 'pending');
    queue.complete(two.id, {});
    expect(await sync()).toMatchObject({ imported: 1 });
    expect(queue.get(one.id).result).toEqual({ loss: 0.5 });
    expect(read()).toBe('seed,loss\n1,0.5\n2,0.6\n');
  });

  test('the result of a running task is found in its row, and the row counts once', async () => {
    const [one, two] = [1, 2].map((seed) => add(`{"width": 1, "seed": ${seed}}`)) as [Task, Task];
    for (const { id } of [one, two]) queue.set(id, 'active');
    put('width,seed,acc\n1.0,2,0.5\n');
    expect(await tables.resultOf(one.id)).toBeNull();
    expect(await tables.resultOf(two.id)).toEqual({ acc: 0.5 });
    queue.complete(two.id, { acc: 0.5 });
    queue.complete(one.id, {});
    await tables.sync();
    expect(read()).toBe('width,seed,acc,task_id\n1.0,2,0.5,\n1,1,,exp1_0\n');
    expect(told).toEqual([]);
  });

  test('rows that count for no task are said in one line, once', async () => {
    add('{"seed": 1, "width": 1}');
    add('{"seed": 1, "width": 2}');
    put('seed,width\n1,\n7,1\n1,1,3\n1\n');
    for (let time = 0; time < 2; time++) await tables.sync();
    expect(told).toEqual([
      expect.stringMatching(/csv:2: .* has seed = 1 and no width\. 4 rows .*, of which this is the first\.$/),
    ]);
    put('seed\n1\n');
    await tables.sync();
    expect(told.slice(1)).toEqual([
      expect.stringMatching(/csv:2: .* fits several tasks \(exp1_0, exp1_1\), .* that differ\.$/),
    ]);
    put('seed,width\n1,2\n1,2.0\n');
    await tables.sync();
    expect(told.slice(2)).toEqual([
      expect.stringMatching(/csv:3: task exp1_1 already has a row \(line 2\)\.$/),
    ]);
  });

  test('rows without a parameter that no row has get it with its column, and still count in a new task list', async () => {
    const [one, two] = [1, 2].map((width) => add(`{"width": ${width}, "seed": 42}`)) as [Task, Task];
    put('width,loss\n1.0,0.5\n9,0.7\n');
    expect(await sync()).toMatchObject({ imported: 1 });
    queue.complete(two.id, { loss: 0.25 });
    await tables.sync();
    const after = 'width,loss,task_id,seed\n1.0,0.5,,42\n9,0.7,,\n2,0.25,exp1_1,42\n';
    expect(read()).toBe(after);
    restart();
    expect(await sync()).toMatchObject({ imported: 0, restored: 0 });
    queue = new FakeQueue();
    for (const { parameters } of [one, two]) queue.add({ parameters, outputDirectory: 'results_a' });
    restart();
    expect(await sync()).toMatchObject({ imported: 2 });
    expect(read()).toBe(after);
  });

  test('a parameter that a sweep gets later runs its tasks again, also those whose old rows leave it empty', async () => {
    const before = ['{"lr": 0.1, "seed": 1}', '{"lr": 0.01, "seed": 1}'].map((json) => add(json));
    await tables.sync();
    for (const { id } of before) queue.complete(id, { loss: 3 });
    await tables.sync();
    const [after] = [
      '{"lr": 0.1, "seed": 1, "momentum": 0.9}',
      '{"lr": 0.01, "seed": 1, "momentum": 0.9}',
    ].map((json) => add(json)) as [Task, Task];
    restart();
    expect(await sync()).toEqual({ imported: 0, restored: 0, problems: [] });
    queue.complete(after.id, { loss: 1 });
    await tables.sync();
    expect(read()).toBe(
      'task_id,lr,seed,loss,momentum\nexp1_0,0.1,1,3,\nexp1_1,0.01,1,3,\nexp1_2,0.1,1,1,0.9\n',
    );
    queue = new FakeQueue();
    for (const lr of ['0.1', '0.01']) add(`{"lr": ${lr}, "seed": 1, "momentum": 0.9}`);
    restart();
    expect(await sync()).toMatchObject({ imported: 1 });
    expect(told).toEqual([
      expect.stringMatching(/csv:2: .* has lr = 0\.1, seed = 1 and no momentum\. 2 rows/),
    ]);
  });
});

test('a row that a worker appends without the columns that were added behind its own counts', async () => {
  const [one, two] = [1, 2].map((seed) => add(`{"width": 1, "seed": ${seed}}`)) as [Task, Task];
  put('width,seed,loss\n');
  await tables.sync();
  queue.complete(one.id, { loss: 1, late: 2 });
  await tables.sync();
  expect(read()).toBe('width,seed,loss,task_id,late\n1,1,1,exp1_0,2\n');
  writeFileSync(path(), `${read()}1,2,0.5\n`);
  expect(await sync()).toMatchObject({ imported: 1, problems: [] });
  expect(queue.get(two.id).result).toEqual({ loss: 0.5 });
});

describe('a table in the directory of the project', () => {
  test('completes tasks of all directories by its rows, and is never written to', async () => {
    const [one, two] = [1, 2, 3].map((seed) => add(`{"seed": ${seed}, "width": 1.0}`)) as [Task, Task];
    const other = add('{"width": 1.0}', 'results_b', 'exp2');
    const text = 'phase,width,seed,loss\nexp1,1,1,0.5\nexp1,1.0,2,0.6\nexp2,1,,0.7\nexp1,2,3,0.9';
    put(text, '.');
    restart();
    expect(await sync()).toMatchObject({ imported: 3, restored: 0 });
    expect([one, two, other].map(({ id }) => queue.get(id).result)).toEqual(
      [0.5, 0.6, 0.7].map((loss, at) => ({ phase: at === 2 ? 'exp2' : 'exp1', loss })),
    );
    expect(read('.')).toBe(text);
    expect(told).toEqual([
      expect.stringMatching(/^final_results\.csv:5: this row is not the result of a task/),
      expect.stringMatching(
        /^final_results\.csv has rows of 3 tasks, which count as completed\. .*exp retry NAME$/,
      ),
    ]);
    restart();
    expect(await sync()).toMatchObject({ imported: 0, restored: 0 });
  });

  test('keeps nobody from anything if it is no such table, and is as all others in an output directory', async () => {
    const { id } = add('{"seed": 1}');
    put('name,mean\nx,1\n', '.');
    restart();
    queue.complete(id, { loss: 1 });
    expect(await sync()).toMatchObject({ restored: 1, problems: [] });
    expect(told[0]).toMatch(/^final_results\.csv:1: no column is .* its rows are ignored\.$/);
    expect(read('.')).toBe('name,mean\nx,1\n');
    put('seed,loss\n2,5\n', '.');
    add('{"seed": 2}', '.');
    queue.complete(add('{"seed": 3}', '.').id, {});
    restart();
    await tables.sync();
    expect(read('.')).toBe('seed,loss,task_id\n2,5,\n3,,exp1_2\n');
  });
});
