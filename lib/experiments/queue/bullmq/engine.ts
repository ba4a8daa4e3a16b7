import { randomBytes } from 'node:crypto';
import type { Task, TaskSpec } from '../../task.ts';
import { stringify, type Values } from '../../written.ts';
import {
  type Attempt,
  type AttemptInfo,
  type Completion,
  type Counts,
  type Enqueued,
  type Failure,
  type Management,
  type Manager,
  type Pause,
  type Queue,
  type Selection,
  STATES,
  type State,
  type Taker,
  type TaskRow,
} from '../queue.ts';
import { parseAddress } from './address.ts';
import { checkFormat, checkServer } from './checks.ts';
import { type Answer, Connection } from './connection.ts';
import { enqueue } from './enqueue.ts';
import { Leases } from './leases.ts';
import { listTasks, lookUp, type Which } from './listing.ts';
import { holderOf, isDead, officeOf } from './office.ts';
import { attemptInfoOf, completionOf, type RowAnswer, taskOf } from './rows.ts';

/** Tasks per operation. */
const PORTION = 500;

/**
 * The queue of a project on Redis: see `parseAddress` for URLs.
 * @returns null: there is none, and it isn't to be made
 * @throws ERR_QUEUE, ERR_INVALID_ARGUMENT
 */
export async function openBullMQQueue(url: string, project: string, create: boolean): Promise<Queue | null> {
  const connection = await Connection.open(parseAddress(url, project));
  try {
    await checkServer(connection);
    if (await checkFormat(connection, create)) return new BullMQQueue(connection);
  } catch (error) {
    connection.close();
    throw error;
  }
  connection.close();
  return null;
}

class BullMQQueue implements Queue {
  readonly url: string;
  readonly #connection: Connection;
  readonly #leases: Leases;
  /** As Redis has it, while this process manages. */
  #management: string | null = null;
  /** Asked for, and an error heard: a task may have been given out. */
  readonly #doubtful = new Set<string>();

  constructor(connection: Connection) {
    this.url = connection.address.url;
    this.#connection = connection;
    this.#leases = new Leases(connection);
  }

  enqueue(
    tasks: Iterable<TaskSpec> | AsyncIterable<TaskSpec>,
    options: { replaceCommands?: boolean; signal?: AbortSignal } = {},
  ): Promise<Enqueued> {
    return enqueue(this.#connection, tasks, options);
  }

  lookUp(ids: readonly string[]): Promise<(TaskRow | null)[]> {
    return lookUp(this.#connection, ids);
  }

  async take(taker: Taker, { lifetime }: { lifetime?: number } = {}): Promise<Attempt | null> {
    await this.#settleDoubtful();
    const { worker, host, pid, gpus } = taker;
    void this.#connection.introduce(host);
    const token = randomBytes(16).toString('hex');
    const asked = this.#leases.time;
    const answer = await this.#connection
      .call<Answer[] | null>(
        'take',
        token,
        lifetime === undefined ? '' : Math.ceil(lifetime),
        worker,
        host,
        pid,
        JSON.stringify(gpus),
      )
      .catch((error) => {
        this.#doubtful.add(token);
        throw error;
      });
    if (answer === null) return null;
    const signal = this.#leases.add(token, lifetime !== undefined, asked);
    return { token, task: taskOf(answer), start: Number(answer[5]), descriptors: [], signal };
  }

  /** What was given out, and not heard of, is nobody's. */
  async #settleDoubtful(): Promise<void> {
    for (const token of this.#doubtful) {
      await this.#connection.call(
        'giveBack',
        token,
        'the queue could not be reached when it was given out',
        0,
      );
      this.#doubtful.delete(token);
    }
  }

  async endLost(): Promise<void> {
    await this.#connection.call('endLost');
  }

  async note(
    token: string,
    { path, from, to }: { path: string; from: number; to: number | null },
  ): Promise<void> {
    await this.#connection.call('note', token, path, from, to ?? '');
  }

  async submit(token: string, result: Values): Promise<boolean> {
    return (await this.#connection.call('submit', token, stringify(result))) === 1;
  }

  async complete(token: string, result: Values | null): Promise<boolean> {
    const given = result === null ? [0, ''] : [1, stringify(result)];
    return this.#ended(token, (await this.#connection.call('complete', token, ...given)) === 1);
  }

  async fail(token: string, { error, retry }: Failure): Promise<State | null> {
    return this.#ended(token, await this.#connection.call<State | null>('fail', token, error, retry ? 1 : 0));
  }

  async giveBack(token: string, why: string, delay = 0): Promise<boolean> {
    const answer = await this.#connection.call('giveBack', token, why, Math.max(0, Math.ceil(delay)));
    return this.#ended(token, answer === 1);
  }

  async adopt(id: string, result: Values): Promise<boolean> {
    return (await this.adoptAll([{ id, result }]))[0] as boolean;
  }

  async adoptAll(rows: readonly { id: string; result: Values }[]): Promise<boolean[]> {
    const adopted: boolean[] = [];
    for (let from = 0; from < rows.length; from += PORTION) {
      const words = rows.slice(from, from + PORTION).flatMap(({ id, result }) => [id, stringify(result)]);
      const answers = await this.#connection.call<number[]>('adopt', ...words);
      adopted.push(...answers.map((answer) => answer === 1));
    }
    return adopted;
  }

  retry(selection: Selection): Promise<string[]> {
    return this.#select('retry', selection);
  }

  cancel(selection: Selection | 'all'): Promise<string[]> {
    return this.#select('cancel', selection);
  }

  async #select(action: string, selection: Selection | 'all'): Promise<string[]> {
    const names: string[] = [];
    if (selection !== 'all' && 'ids' in selection) {
      for (let from = 0; from < selection.ids.length; from += PORTION) {
        const ids = selection.ids.slice(from, from + PORTION);
        names.push(...(await this.#connection.call<string[]>('select', action, ...ids)));
      }
      return [...new Set(names)];
    }
    const state = selection === 'all' ? '' : selection.state;
    for (let after = '0'; ; ) {
      const [last, some] = await this.#connection.call<[string, string[]]>(
        'selectState',
        action,
        state,
        after,
        PORTION,
      );
      names.push(...some);
      if (last === '0') return names;
      after = last;
    }
  }

  async pause(by: Pause['by'], message: string): Promise<void> {
    const pause: Pause = { by, message, since: Date.now() };
    await this.#connection.call('pause', JSON.stringify(pause), by);
  }

  async resume(): Promise<void> {
    await this.#connection.call('resume');
  }

  async paused(): Promise<Pause | null> {
    const [text, inDashboard] = await this.#connection.call<[string | null, number]>('paused');
    if (text !== null) return JSON.parse(text) as Pause;
    return inDashboard === 1
      ? { by: 'person', message: 'paused in a dashboard of BullMQ', since: Date.now() }
      : null;
  }

  async counts(): Promise<Counts> {
    const counts = await this.#connection.call<number[]>('counts', ...STATES);
    return Object.fromEntries(STATES.map((state, index) => [state, counts[index]])) as Counts;
  }

  async nextTime(): Promise<number | null> {
    const time = await this.#connection.call<string | null>('nextTime');
    return time === null ? null : Number(time);
  }

  tasks(which: Which = {}): AsyncIterable<TaskRow> {
    return listTasks(this.#connection, which);
  }

  async attempts(which: 'living' | { taskId: string }): Promise<AttemptInfo[]> {
    const words = which === 'living' ? [1, ''] : [0, which.taskId];
    const answers = await this.#connection.call<(string | null)[][]>('attempts', ...words);
    return answers.map(attemptInfoOf);
  }

  async completions(after: number, limit: number): Promise<Completion[]> {
    const answers = await this.#connection.call<Answer[][]>('completions', after, limit);
    return answers.map(completionOf);
  }

  async retracted(): Promise<Task[]> {
    return (await this.#connection.call<RowAnswer[]>('retracted')).map(taskOf);
  }

  async forgetRetracted(ids: readonly string[]): Promise<void> {
    for (let from = 0; from < ids.length; from += PORTION) {
      await this.#connection.call('forget', ...ids.slice(from, from + PORTION));
    }
  }

  changed(milliseconds: number, signal?: AbortSignal): Promise<void> {
    return this.#leases.changed(milliseconds, signal);
  }

  async manage({ host, pid }: { host: string; pid: number }): Promise<Management | null> {
    if (this.#management !== null) return null;
    const who = officeOf({ host, pid });
    const before = await this.#connection.call<[string, string] | null>('manager');
    const dead = before !== null && isDead(before[0]) ? before[0] : '';
    const asked = this.#leases.time;
    if ((await this.#connection.call('manage', who, dead)) !== 1) return null;
    this.#management = who;
    const lost = new AbortController();
    this.#leases.manage(who, asked, () => {
      this.#management = null;
      lost.abort(new Error('the queue could not be reached for too long'));
    });
    return {
      lost: lost.signal,
      release: async () => {
        if (this.#management === who) await this.#release();
      },
    };
  }

  async manager(): Promise<Manager | null> {
    const answer = await this.#connection.call<[string, string] | null>('manager');
    if (answer === null || isDead(answer[0])) return null;
    return { ...holderOf(answer[0]), until: Number(answer[1]) };
  }

  async close(): Promise<void> {
    if (this.#connection.isClosed) return;
    // Without Redis, its time runs out by itself.
    if (this.#connection.isReady) await this.#release().catch(() => {});
    this.#leases.close();
    this.#connection.close();
  }

  async #release(): Promise<void> {
    const who = this.#management;
    if (who === null) return;
    this.#management = null;
    this.#leases.manage(null);
    await this.#connection.call('release', who);
  }

  /** Whatever the answer, the attempt is over: its process has nothing more to do with the task. */
  #ended<T>(token: string, answer: T): T {
    this.#leases.remove(token);
    return answer;
  }
}
