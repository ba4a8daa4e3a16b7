import { resolve } from 'node:path';
import { batchesOf, type Completion, type Queue } from '../queue/index.ts';
import type { Task, Values } from '../task/index.ts';
import { Problems } from './problems.ts';
import { type PendingRow, Table, type Tasks } from './table.ts';
import { commonTablePath, shownPath, type TableFile, tablePath } from './table-file.ts';

/** Results per query, at most. */
const PAGE = 500;
/** The part of a queue that is needed to know its tasks. */
export type TaskSource = Pick<Queue, 'tasks' | 'completions' | 'importResults' | 'lookUp'>;

interface KnownTask {
  readonly id: string;
  readonly name: string;
  /** The number of its completion; 0: none that is known. */
  sequence: number;
  /** The tables that get its row. */
  readonly tables: Table[];
}

/** The tasks of the queue, by numbers from 0, and the tables that they belong to. */
export class KnownTasks implements Tasks {
  /** By their paths. */
  readonly tables = new Map<string, Table>();
  /**
   * The one in the project's directory, unless that is an output directory; null: there is none. This table is never written.
   */
  common: Table | null = null;
  private readonly queue: TaskSource;
  private readonly project: string;
  readonly problems: Problems;
  private readonly tasks: KnownTask[] = [];
  private readonly numbers = new Map<string, number>();
  private readonly completed = new Set<number>();
  private readonly paths = new Map<string, string>();

  constructor(queue: TaskSource, project: string, tell: (message: string) => void, consequence?: string) {
    this.queue = queue;
    this.project = resolve(project);
    this.problems = new Problems(tell, consequence);
    const common = commonTablePath(this.project);
    if (common === null) return;
    const problems = new Problems(tell, consequence ?? 'its rows are ignored');
    this.common = new Table(this.fileAt(common), shownPath(this.project, common), this, problems);
  }

  /** Reads all tasks, and notes those that are new, or have new destinations. */
  async load(): Promise<void> {
    for await (const { task, state, sequence } of this.queue.tasks()) {
      const number = this.add(task);
      if (state === 'completed') this.complete(number, sequence as number);
    }
  }

  /** @returns its number */
  add(task: Task, isNamed = true): number {
    let number = this.numbers.get(task.id);
    if (number === undefined) {
      number = this.tasks.push({ id: task.id, name: task.name, sequence: 0, tables: [] }) - 1;
      this.numbers.set(task.id, number);
      this.common?.index.add(number, task.parameters, isNamed ? task.name : null);
      this.common?.forget();
    }
    const { tables } = this.at(number);
    for (const { outputDirectory } of task.destinations) {
      const table = this.tableIn(outputDirectory);
      if (tables.includes(table)) continue;
      tables.push(table);
      table.index.add(number, task.parameters, isNamed ? task.name : null);
      // Rows that fitted one task may fit two now.
      table.forget();
      if (this.completed.has(number)) table.waiting.add(number);
    }
    return number;
  }

  private at(task: number): KnownTask {
    return this.tasks[task] as KnownTask;
  }

  /** The tables that get its row. */
  tablesOf(task: number): readonly Table[] {
    return this.at(task).tables;
  }

  numberOf(id: string): number | undefined {
    return this.numbers.get(id);
  }

  idOf(task: number): string {
    return this.at(task).id;
  }

  nameOf(task: number): string {
    return this.at(task).name;
  }

  isCompleted(task: number): boolean {
    return this.completed.has(task);
  }

  get completedCount(): number {
    return this.completed.size;
  }

  complete(task: number, sequence: number): void {
    this.completed.add(task);
    this.at(task).sequence = sequence;
  }

  /** Takes back a result that doesn't count any longer. */
  async retract(task: number): Promise<void> {
    if (!this.completed.has(task)) return;
    // Unless it has a new one already.
    const { sequence } = this.at(task);
    const [there] = sequence === 0 ? [] : await this.queue.completions(sequence - 1, 1);
    if (there?.sequence === sequence) return;
    this.completed.delete(task);
    this.at(task).sequence = 0;
    for (const { waiting, lost } of this.tablesOf(task)) {
      waiting.delete(task);
      lost.delete(task);
    }
  }

  async importResults(rows: readonly { task: number; result: Values }[]): Promise<boolean[]> {
    const imported = await this.queue.importResults(
      rows.map(({ task, result }) => ({ id: this.idOf(task), result })),
    );
    for (const [at, { task }] of rows.entries()) if (imported[at]) this.completed.add(task);
    return imported;
  }

  async parametersOf(tasks: Iterable<number>): Promise<Map<number, Values>> {
    const parameters = new Map<number, Values>();
    for (const batch of batchesOf(tasks)) {
      const rows = await this.queue.lookUp(batch.map((task) => this.idOf(task)));
      for (const [at, row] of rows.entries())
        if (row !== null) parameters.set(batch[at] as number, row.task.parameters);
    }
    return parameters;
  }

  /** The results of some of the tasks, in the order of completion. */
  async *results(tasks: Iterable<number>): AsyncGenerator<PendingRow[]> {
    const wanted = new Map<number, number>();
    for (const task of tasks) {
      const { sequence } = this.at(task);
      if (sequence > 0) wanted.set(sequence, task);
    }
    const sequences = [...wanted.keys()].sort((one, other) => one - other);
    for (let at = 0; at < sequences.length; ) {
      const page = await this.queue.completions((sequences[at] as number) - 1, PAGE);
      yield page.flatMap((completion) => this.entryOf(wanted, completion));
      const last = page.at(-1)?.sequence ?? Number.POSITIVE_INFINITY;
      while (at < sequences.length && (sequences[at] as number) <= last) at++;
    }
  }

  private entryOf(wanted: ReadonlyMap<number, number>, completion: Completion): PendingRow[] {
    const task = wanted.get(completion.sequence);
    if (task === undefined || this.idOf(task) !== completion.task.id) return [];
    return [{ task, completion }];
  }

  private fileAt(path: string): TableFile {
    return { path, project: this.project };
  }

  private tableIn(outputDirectory: string): Table {
    let path = this.paths.get(outputDirectory);
    if (path === undefined) {
      path = tablePath(this.project, outputDirectory);
      this.paths.set(outputDirectory, path);
    }
    let table = this.tables.get(path);
    if (path === this.common?.path) this.common = null;
    if (table === undefined) {
      table = new Table(this.fileAt(path), shownPath(this.project, path), this, this.problems);
      this.tables.set(path, table);
    }
    return table;
  }
}
