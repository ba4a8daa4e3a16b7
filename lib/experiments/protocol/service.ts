import { GPUOwnerError } from '../../errors.ts';
import type { AttemptInfo, Queue } from '../queue/index.ts';
import { type Endpoint, formatEndpoint } from './addresses.ts';
import type { Admission } from './admission.ts';
import { Desk, type DeskOptions } from './desk.ts';
import { RequestError } from './requests.ts';
import { ProtocolServer } from './server.ts';

export interface ServiceOptions {
  queue: Queue;
  endpoints: readonly Endpoint[];
  admission: Admission;
  /** See {@link Desk}; in ms. */
  lifetime: number;
  unique: boolean;
  rowsOf: DeskOptions['rowsOf'];
  report: (attempt: AttemptInfo) => void;
  tell: (message: string) => void;
}

/** Complaints per minute: whoever scans ports mustn't fill the log. */
const MOST_COMPLAINTS = 10;
const MINUTE = 60_000;

/** The ports of a manager. */
export class ProtocolService {
  readonly #options: ServiceOptions;
  readonly #desk: Desk;
  readonly #server: ProtocolServer;
  /** Where somebody else listens. */
  #taken: Endpoint[];
  #told = false;
  #retrying = false;
  #complaints = { since: 0, count: 0 };
  /** Where it listens, to be told when it is opened; null: it is. */
  #news: string[] | null = [];
  /** Requests wait for it. */
  readonly #opened: Promise<void>;
  #open: () => void = () => {};

  constructor(options: ServiceOptions) {
    this.#options = options;
    this.#taken = [...options.endpoints];
    this.#desk = new Desk(options);
    this.#opened = new Promise((resolve) => {
      this.#open = resolve;
    });
    this.#server = new ProtocolServer({
      admission: options.admission,
      handle: async (request, from, hasEnded) => {
        if (this.#news !== null) {
          await this.#opened;
          // A worker whose patience has ended asks again: this task would be nobody's.
          if (request.type === 'request_task' && hasEnded())
            throw new RequestError('this manager was not ready yet; ask again');
        }
        return this.#desk.handle(request, from);
      },
      complain: (message) => this.#complain(message),
    });
  }

  /** Connections that are open. */
  get connections(): number {
    return this.#server.connections;
  }

  /** Do all workers that got tasks know that there is nothing left? */
  get isQuiet(): boolean {
    return this.#desk.isQuiet;
  }

  /** From now on requests are answered. */
  open(): void {
    for (const text of this.#news ?? []) this.#options.tell(text);
    this.#news = null;
    this.#open();
  }

  /**
   * Listens where nobody else does; the rest is tried again with the next call. Requests wait for {@link open}.
   * @param alone is this the manager? Then somebody else who listens is no other manager of this experiment.
   * @throws ERR_INVALID_ARGUMENT; with `alone` also if a port is in use
   */
  async listen(alone: boolean): Promise<void> {
    const taken: Endpoint[] = [];
    for (const endpoint of this.#taken) {
      try {
        const where = await this.#server.listen(endpoint);
        const text = `workers can ask for tasks at ${formatEndpoint(where)}`;
        if (this.#news === null) this.#options.tell(text);
        else this.#news.push(text);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
        taken.push(endpoint);
      }
    }
    this.#taken = taken;
    const [first] = taken;
    if (first === undefined || this.#told) return;
    const where = formatEndpoint(first);
    if (alone) {
      throw new GPUOwnerError(
        'ERR_INVALID_ARGUMENT',
        `another program listens on ${where} (ss -ltnp shows which): end it, or choose another port with --listen PORT, or --no-listen`,
      );
    }
    this.#told = true;
    this.#options.tell(
      `${where} is in use, by the other manager perhaps: it is tried again until it is free`,
    );
  }

  /** As `listen`, where somebody else had the port until now. Never fails. */
  retry(): void {
    if (this.#retrying || this.#taken.length === 0) return;
    this.#retrying = true;
    this.listen(false)
      .catch((error: Error) => this.#complain(error.message))
      .finally(() => {
        this.#retrying = false;
      });
  }

  #complain(message: string): void {
    const now = Date.now();
    if (now - this.#complaints.since > MINUTE) this.#complaints = { since: now, count: 0 };
    if (++this.#complaints.count < MOST_COMPLAINTS) this.#options.tell(`warning: ${message}`);
    else if (this.#complaints.count === MOST_COMPLAINTS) {
      this.#options.tell(`warning: ${message}; more of this isn't told for a minute`);
    }
  }

  close(): Promise<void> {
    this.#desk.close();
    return this.#server.close();
  }
}
