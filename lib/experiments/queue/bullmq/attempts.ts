import { randomBytes } from 'node:crypto';
import { stringify, type Values } from '../../task/index.ts';
import { type Attempt, type Failure, MAX_DELAY_MS, type State, type WorkerInfo } from '../queue.ts';
import { readCount } from '../records.ts';
import type { Answer, Connection } from './connection.ts';
import type { Leases } from './leases.ts';
import { takerText, taskOf } from './rows.ts';

/** Takes tasks, and says what became of them: see `Queue`. */
export class Attempts {
  readonly #connection: Connection;
  readonly #leases: Leases;
  /** Asked for, and an error heard: a task may have been given out. */
  readonly #doubtful = new Set<string>();

  constructor(connection: Connection, leases: Leases) {
    this.#connection = connection;
    this.#leases = leases;
  }

  async take(taker: WorkerInfo, lifetime: number | undefined): Promise<Attempt | null> {
    await this.#settleDoubtful();
    void this.#connection.introduce(taker.host);
    const token = randomBytes(16).toString('hex');
    const asked = this.#leases.time;
    const answer = await this.#connection
      .call<Answer[] | null>(
        'take',
        token,
        lifetime === undefined ? '' : Math.ceil(lifetime),
        taker.worker,
        takerText(taker),
      )
      .catch((error) => {
        this.#doubtful.add(token);
        throw error;
      });
    if (answer === null) return null;
    const task = taskOf(answer);
    if (task.damage !== undefined) {
      // Nobody can run it, and everybody else is to go on.
      await this.#connection.call('fail', token, task.damage, 0);
      return this.take(taker, lifetime);
    }
    const signal = this.#leases.add(token, answer[0] as string, lifetime !== undefined, asked);
    return { token, task, start: readCount(answer[5]), descriptors: [], signal };
  }

  /** What was given out, and not heard of, is nobody's. */
  async #settleDoubtful(): Promise<void> {
    for (const token of this.#doubtful) {
      const why = 'the queue could not be reached when it was given out';
      await this.#connection.call('requeue', token, why, 0);
      this.#doubtful.delete(token);
    }
  }

  async endLost(): Promise<void> {
    await this.#connection.call('endLost');
  }

  async setLog(
    token: string,
    { path, from, to }: { path: string; from: number; to: number | null },
  ): Promise<void> {
    await this.#connection.call('setLog', token, path, from, to ?? '');
  }

  async submit(token: string, result: Values): Promise<boolean> {
    return (await this.#connection.call('submit', token, stringify(result))) === 1;
  }

  async complete(token: string, result: Values | null): Promise<boolean> {
    const given = result === null ? ['', 0, ''] : [this.#leases.taskOf(token) ?? '', 1, stringify(result)];
    return this.#ended(token, (await this.#connection.call('complete', token, ...given)) === 1);
  }

  async fail(token: string, { error, retry }: Failure): Promise<State | null> {
    return this.#ended(token, await this.#connection.call<State | null>('fail', token, error, retry ? 1 : 0));
  }

  async requeue(token: string, why: string, delay: number): Promise<boolean> {
    const milliseconds = Math.min(Math.max(0, Math.ceil(delay)), MAX_DELAY_MS);
    const answer = await this.#connection.call('requeue', token, why, milliseconds);
    return this.#ended(token, answer === 1);
  }

  /** Whatever the answer, the attempt is over: its process has nothing more to do with the task. */
  #ended<T>(token: string, answer: T): T {
    this.#leases.remove(token);
    return answer;
  }
}
