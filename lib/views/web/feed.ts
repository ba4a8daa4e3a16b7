// The state of machines for all clients over HTTP: one look at the driver per interval, however many they are, and one per
// minute without clients, for the last 24 hours.
import type { ServerResponse } from 'node:http';
import { GPUOwnerError } from '../../errors.ts';
import { hostName, isoTime, now, sleep, TIMEOUTS, userName } from '../../platform/index.ts';
import type { FleetView } from '../fleet-view.ts';
import type { MachineSnapshot, MachineView } from '../machine-view.ts';
import { Day, SLOT_MS } from './day.ts';
import type { HistoryAnswer, StreamLine, StreamMachine } from './shapes.ts';

export const MAX_VIEWERS = 500;
/** Between looks without a viewer. */
const IDLE_INTERVAL_MS = 60_000;
/** How late a line may be before viewers get the last state again, with the problem. */
const LATE_MS = 1_000;

/** Looks at machines for everybody who asks. */
export class Feed {
  readonly #view: MachineView | FleetView;
  readonly #intervalMs: number;
  readonly #days: Day[];
  readonly #idleTimer: NodeJS.Timeout;
  readonly #end = new AbortController();
  /** Viewers, and since when they haven't read; null: they have read all. */
  readonly #viewers = new Map<ServerResponse, number | null>();
  #isWatching = false;
  #looking: Promise<void> | null = null;
  /** When the last look began. */
  #lookedAt = Number.NEGATIVE_INFINITY;
  #sentAt = Number.NEGATIVE_INFINITY;

  constructor(view: MachineView | FleetView, intervalMs: number) {
    this.#view = view;
    this.#intervalMs = intervalMs;
    this.#days = view.machines.map(() => new Day());
    this.#idleTimer = setInterval(() => void this.#look(), IDLE_INTERVAL_MS);
    void this.#look();
  }

  get isFull(): boolean {
    return this.#viewers.size >= MAX_VIEWERS;
  }

  /** Sends a line per interval, the first at once, until the viewer goes, or doesn't read. */
  add(viewer: ServerResponse): void {
    this.#viewers.set(viewer, null);
    viewer.on('close', () => this.#viewers.delete(viewer));
    if (this.#isKnown && now() - this.#lookedAt < this.#intervalMs) viewer.write(this.#line());
    if (!this.#isWatching) void this.#watch();
  }

  get #isKnown(): boolean {
    return this.#machines().some(({ snapshot, problem }) => snapshot !== null || problem !== null);
  }

  /** The machines now, as of a look which is no older than the interval. */
  async current(): Promise<StreamMachine[]> {
    await this.#look();
    return this.#machines();
  }

  /** How the last look at this machine failed. */
  get failure(): GPUOwnerError | null {
    return 'failure' in this.#view ? this.#view.failure : null;
  }

  history(): HistoryAnswer {
    const at = now();
    const machines = this.#machines().map(({ host }, i) => ({ host, gpus: this.#days[i]?.read(at) ?? [] }));
    return { time: isoTime(), slotSeconds: SLOT_MS / 1_000, machines };
  }

  close(): void {
    this.#end.abort();
    clearInterval(this.#idleTimer);
    for (const viewer of this.#viewers.keys()) viewer.destroy();
  }

  async #watch(): Promise<void> {
    this.#isWatching = true;
    const repeat = setInterval(() => {
      if (now() - this.#sentAt > this.#intervalMs + LATE_MS) this.#send();
    }, LATE_MS);
    try {
      while (this.#viewers.size > 0 && !this.#end.signal.aborted) {
        const begin = now();
        await this.#look();
        this.#send();
        await sleep(Math.max(this.#intervalMs / 2, this.#intervalMs - (now() - begin)), this.#end.signal);
      }
    } finally {
      clearInterval(repeat);
      this.#isWatching = false;
    }
  }

  /** Looks, unless the last look was a moment ago. */
  #look(): Promise<void> {
    if (this.#looking !== null) return this.#looking;
    // A timer that comes a little early must not cost the loop a whole interval.
    if (now() - this.#lookedAt < this.#intervalMs * 0.9) return Promise.resolve();
    this.#lookedAt = now();
    this.#looking = this.#lookNow().finally(() => {
      this.#looking = null;
    });
    return this.#looking;
  }

  async #lookNow(): Promise<void> {
    try {
      if ('look' in this.#view) await this.#view.look();
    } catch (error) {
      // The view remembers it.
      if (!(error instanceof GPUOwnerError)) throw error;
    }
    for (const [i, { snapshot, problem }] of this.#machines().entries())
      if (snapshot !== null && problem === null) this.#days[i]?.add(snapshot.gpus, now());
  }

  #machines(): StreamMachine[] {
    return this.#view.machines.map(({ host, problem, snapshot, jobs }) => ({
      host: host ?? hostName(),
      isLocal: host === null,
      problem: problem ?? this.failure?.message ?? null,
      snapshot: snapshot === null ? null : withoutProcesses(snapshot),
      jobs: [...jobs],
    }));
  }

  #line(): Buffer {
    const line: StreamLine = {
      time: isoTime(),
      intervalSeconds: this.#intervalMs / 1_000,
      user: userName(process.geteuid?.() ?? 0),
      machines: this.#machines(),
    };
    return Buffer.from(`${JSON.stringify(line)}\n`);
  }

  /** Sends a line to those who have read the last one: what waits in memory for a viewer is one line at most. */
  #send(): void {
    const at = now();
    const line = this.#line();
    this.#sentAt = at;
    for (const [viewer, since] of this.#viewers) {
      if (!viewer.writableNeedDrain) {
        this.#viewers.set(viewer, null);
        viewer.write(line);
      } else if (since === null) this.#viewers.set(viewer, at);
      else if (at - since > TIMEOUTS.stalledViewer) viewer.destroy();
    }
  }
}

/** The page has no use for them, and the commands of other programs are nothing for those who have the token only. */
function withoutProcesses({ processes: _, ...snapshot }: MachineSnapshot): MachineSnapshot {
  return snapshot;
}
