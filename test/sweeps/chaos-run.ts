// A sweep under way, with everything around it that makes trouble: a monkey, workers that come and go, others who want GPUs.
import type { ChildProcess } from 'node:child_process';
import { command, type Finished, finished, pause, until } from '../support/machine.ts';
import type { Random } from '../support/random.ts';
import { DriverWatch } from './driver-watch.ts';
import { Monkey, type Shares } from './monkey.ts';
import type { RedisFaults } from './redis-faults.ts';
import { violationsIn } from './witness.ts';
import { CHAOTIC, type WitnessedExperiment } from './witnessed.ts';

interface ChaosSettings {
  gpus: number;
  /** Beside those of the manager. */
  workers: number;
  /** Between two deeds of the monkey, in ms. */
  rest: number;
  /** Whom it strikes. Default: everybody. */
  shares?: Shares;
  /** For how many ms a process is stopped at most. */
  longestStop?: number;
  /** Faults of the Redis that has the queue. */
  redis?: RedisFaults;
  /** After so many ms nothing is killed any more: what is left must come to its end. */
  mischief: number;
  /** How long that may take, in ms. */
  patience: number;
}

/** Exit codes that managers and workers may end with by themselves. */
const CODES = [0, 1];
/** A process that finds no queue when it starts says so and ends; one that has found it stays. */
const NO_QUEUE = /can't be reached/;

export class ChaosRun {
  readonly #experiment: WitnessedExperiment;
  readonly #random: Random;
  readonly #settings: ChaosSettings;
  readonly monkey: Monkey;
  readonly watch: DriverWatch;
  /** How many processes were started. */
  starts = 0;
  /** Messages about processes that ended otherwise than they may. */
  readonly complaints: string[] = [];
  /** Tasks that workers have said are completed. */
  readonly acknowledged: string[] = [];
  #last = '';
  #isOver = false;

  constructor(experiment: WitnessedExperiment, random: Random, settings: ChaosSettings) {
    this.#experiment = experiment;
    this.#random = random;
    this.#settings = settings;
    this.monkey = new Monkey(
      experiment.machine,
      random,
      settings.rest,
      settings.shares,
      settings.longestStop,
    );
    this.watch = new DriverWatch(experiment.machine);
  }

  /** Until a manager has said that every task has come to its end, and everybody has left. */
  async pass(): Promise<void> {
    const { mischief, patience, gpus, workers, redis } = this.#settings;
    const experiment = this.#experiment;
    const calm = setTimeout(() => {
      this.monkey.end();
      redis?.end();
    }, mischief);
    const others = [this.monkey.run(), this.watch.run(), redis?.run()];
    const claimant = [process.execPath, command, 'run', '--', ...CHAOTIC, 'claimant', '0.1'];
    const actors = [
      this.#keepStarting(300, () => experiment.start(['run', '--gpus', String(gpus)]), { isManager: true }),
      ...Array.from({ length: workers }, () => this.#keepStarting(300, () => experiment.start(['worker']))),
      // The claimant's command may be killed as any other.
      this.#keepStarting(2_000, () => experiment.machine.start(claimant, experiment), { isOurs: false }),
    ];
    try {
      await until(() => this.#isOver, 'the end of the sweep', mischief + patience);
      // Workers end by themselves when nothing can come any more.
      const ended = Promise.all(actors).then(() => true);
      await until(() => Promise.race([ended, pause(10).then(() => false)]));
    } catch (error) {
      const { stdout } = await experiment.run(['status']);
      const found = [...this.complaints, ...violationsIn(experiment.testimony()), ...experiment.left()];
      throw new Error(`${error}\n${stdout}\n${this.#last}\n${found.slice(0, 50).join('\n')}`);
    } finally {
      this.#isOver = true;
      clearTimeout(calm);
      this.monkey.end();
      this.watch.end();
      redis?.end();
      await Promise.all(others);
    }
  }

  async #keepStarting(
    rest: number,
    start: () => ChildProcess,
    { isManager = false, isOurs = true } = {},
  ): Promise<void> {
    // There must be an experiment before anybody can work for it.
    if (!isManager) await until(() => this.#isOver || this.#experiment.log() !== '');
    while (!this.#isOver) {
      this.starts++;
      const end = await finished(start());
      if (!isManager) this.acknowledged.push(...namesIn(end.stdout));
      if (isOurs && end.signal === null && !CODES.includes(end.code ?? -1) && !this.#foundNoQueue(end)) {
        const said = `${end.stderr}${end.stdout}`.trimEnd().split('\n').slice(-3).join(' | ');
        this.complaints.push(`${isManager ? 'manager' : 'worker'}: code ${end.code}: ${said}`);
      }
      if (isManager) await this.#managed(end);
      await pause(this.#random.float(2 * rest));
    }
  }

  #foundNoQueue({ code, stdout, stderr }: Finished): boolean {
    return this.#settings.redis !== undefined && code === 69 && stdout === '' && NO_QUEUE.test(stderr);
  }

  async #managed({ code, signal, stdout, stderr }: Finished): Promise<void> {
    this.#last = `the last manager ended with ${code}: ${stdout.slice(-1000)}${stderr.slice(-2000)}`;
    if (signal !== null || this.#isOver) return;
    // 1: some have failed; or workers have stopped because so many did, which the next manager lifts.
    if (code !== 0 && code !== 1) return;
    const counts = await this.#counts();
    if (counts === null) return; // the next manager will see it
    this.#isOver = code === 0 || counts.pending + counts.active === 0;
  }

  /** null: the queue can't be reached. */
  async #counts(): Promise<{ pending: number; active: number } | null> {
    const { code, stdout, stderr } = await this.#experiment.run(['status', '--json']);
    if (code === 0) return JSON.parse(stdout).counts;
    if (this.#settings.redis !== undefined && NO_QUEUE.test(stderr)) return null;
    throw new Error(`exp status: ${code} ${stderr}`);
  }
}

function namesIn(said: string): string[] {
  return Array.from(said.matchAll(/Task (\S+) completed by /g), ([, name]) => name as string);
}
