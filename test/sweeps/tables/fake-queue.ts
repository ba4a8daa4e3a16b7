import { setTimeout as sleep } from 'node:timers/promises';
import type { Completion, Counts, Queue, State, TaskRow } from '../../../lib/sweeps/queue/queue.ts';
import { parseValue, type Task, type TaskSpec, taskId, type Values } from '../../../lib/sweeps/task/index.ts';

type Part = 'tasks' | 'completions' | 'importResults' | 'retracted' | 'forgetRetracted' | 'counts' | 'lookUp';

type Row = TaskRow & { result: Values };

/** Completions per batch, as if they were large. */
const MAX_BATCH = 3;

/** The part of a queue that tables need, in memory. */
export class FakeQueue implements Pick<Queue, Part> {
  readonly rows: Row[] = [];
  readonly byId = new Map<string, Row>();
  private order: Row[] = [];
  private readonly out = new Set<string>();
  private sequence = 0;

  get queue(): Queue {
    return this as unknown as Queue;
  }

  add(spec: Pick<TaskSpec, 'parameters' | 'outputDirectory'> & { phase?: string }): Task {
    const id = taskId(spec.parameters);
    const destination = { phase: spec.phase ?? 'exp1', outputDirectory: spec.outputDirectory };
    const known = this.byId.get(id);
    if (known !== undefined) {
      (known.task as { destinations: unknown }).destinations = [...known.task.destinations, destination];
      return known.task;
    }
    const task = {
      id,
      name: `${destination.phase}_${this.rows.length}`,
      parameters: spec.parameters,
      command: { words: [] },
      destinations: [destination],
    };
    const row = { task, state: 'pending' as State, starts: 0, error: null, ended: null, source: null };
    const whole = { ...row, sequence: null, result: {} };
    this.rows.push(whole);
    this.byId.set(id, whole);
    return task;
  }

  set(id: string, state: State): void {
    this.get(id).state = state;
  }

  complete(id: string, result: Values, source: 'worker' | 'table' = 'worker'): void {
    const row = this.get(id);
    row.state = 'completed';
    row.result = result;
    row.source = source;
    row.sequence = ++this.sequence;
    this.order.push(row);
  }

  async lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]> {
    return ids.map((id) => this.byId.get(id) ?? null);
  }

  retry(id: string): void {
    const row = this.get(id);
    if (row.state === 'completed') this.out.add(id);
    row.state = 'pending';
    row.sequence = null;
    this.order = this.order.filter((each) => each !== row);
  }

  get(id: string): Row {
    return this.byId.get(id) as Row;
  }

  async *tasks(): AsyncGenerator<TaskRow> {
    for (const [at, row] of this.rows.entries()) {
      if (at % 500 === 0) await sleep(0);
      yield row;
    }
  }

  async completions(after: number, limit: number): Promise<Completion[]> {
    let low = 0;
    for (let high = this.order.length; low < high; ) {
      const middle = (low + high) >> 1;
      if ((this.order[middle]?.sequence ?? 0) > after) high = middle;
      else low = middle + 1;
    }
    return this.order
      .slice(low, low + Math.min(limit, MAX_BATCH))
      .map(({ sequence, task, result, source }) => ({
        sequence: sequence as number,
        task,
        result,
        source: source ?? 'worker',
      }));
  }

  /** How many tasks were completed by rows of tables. */
  imported = 0;

  async importResults(rows: readonly { id: string; result: Values }[]): Promise<boolean[]> {
    return rows.map(({ id, result }) => {
      const { state } = this.get(id);
      if (state === 'active' || state === 'completed' || this.out.has(id)) return false;
      this.complete(id, result, 'table');
      this.imported++;
      return true;
    });
  }

  async retracted(): Promise<Task[]> {
    return [...this.out].map((id) => this.get(id).task);
  }

  async forgetRetracted(ids: readonly string[]): Promise<void> {
    for (const id of ids) this.out.delete(id);
  }

  async counts(): Promise<Counts> {
    const completed = this.order.length;
    const active = this.rows.filter(({ state }) => state === 'active').length;
    return { pending: this.rows.length - completed - active, active, completed, failed: 0, cancelled: 0 };
  }
}

/** Values as a sweep has them, numbers as they are written. */
export function values(json: string): Values {
  return parseValue(json) as Values;
}
