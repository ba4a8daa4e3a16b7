import { createServer, type Server, type Socket } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { sanitize } from '../../platform/index.ts';
import { type Endpoint, formatEndpoint, plainAddress } from './endpoints.ts';
import type { Admission, Judgement } from './authentication.ts';
import { type Answer, Connection, errorAnswer } from './connection.ts';
import { parseRequest, type Request, RequestError } from './messages.ts';
import type { AttemptInfo, Queue } from '../queue/index.ts';
import { Desk, type DeskOptions } from './request-handler.ts';

export interface ServerOptions {
  admission: Admission;
  /**
   * What to answer. May reject: the client is told that it didn't work.
   * @param from the client's address @param hasEnded whether it says nothing more: it may be gone
   */
  handle: (request: Request, from: string, hasEnded: () => boolean) => Promise<Answer>;
  /** Something that a person may have to look at. */
  complain: (message: string) => void;
  limits?: Partial<Limits>;
}

export interface Limits {
  /** Connections at once of those who may connect. */
  connections: number;
  /** Of one of them: an address, or a user of this machine. */
  perPeer: number;
  /** Of those who may not connect, unless they have the token. */
  strangers: number;
  /** Of a request. */
  bytes: number;
  /** Of all requests that are being received. */
  bytesInAll: number;
  /** Of those who may not connect. */
  bytesOfStrangers: number;
  /** For a request to be complete, in ms. */
  patience: number;
}

const LIMITS: Limits = {
  connections: 1_000,
  perPeer: 500,
  strangers: 50,
  bytes: 1024 ** 2,
  bytesInAll: 64 * 1024 ** 2,
  bytesOfStrangers: 4 * 1024 ** 2,
  patience: 10_000,
};

const TOO_MANY = 'too many connections at once; try again';

/** Waiting connections of the kernel's, beyond those that are open. */
const BACKLOG = 1_024;

/** The port of a manager: a connection per request. */
export class ProtocolServer {
  readonly #options: ServerOptions;
  readonly #limits: Limits;
  readonly #servers: Server[] = [];
  readonly #sockets = new Set<Socket>();
  /** With their peers, oldest first. Neither takes the other's places. */
  readonly #strangers = new Map<Socket, string>();
  readonly #admitted = new Map<Socket, string>();
  readonly #bytes = { all: 0, strangers: 0 };

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#limits = { ...LIMITS, ...options.limits };
  }

  /** Connections that are open. */
  get connections(): number {
    return this.#sockets.size;
  }

  /** @returns where it listens now @throws ERR_INVALID_ARGUMENT; NodeJS.ErrnoException with EADDRINUSE if somebody else does */
  async listen(endpoint: Endpoint): Promise<Endpoint> {
    this.#options.admission.check(endpoint);
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => this.#accept(socket));
    await new Promise<void>((resolve, reject) => {
      server.once('error', (error: NodeJS.ErrnoException) =>
        reject(error.code === 'EADDRINUSE' ? error : unusable(endpoint, error)),
      );
      server.listen({ ...endpoint, backlog: BACKLOG, ipv6Only: false }, resolve);
    });
    server.on('error', (error) => this.#options.complain(`the port: ${error.message}`));
    this.#servers.push(server);
    return { host: endpoint.host, port: (server.address() as { port: number }).port };
  }

  #accept(socket: Socket): void {
    const { remoteAddress, remotePort, localAddress, localPort } = socket;
    socket.on('error', () => socket.destroy());
    if (
      remoteAddress === undefined ||
      remotePort === undefined ||
      localAddress === undefined ||
      localPort === undefined
    ) {
      socket.destroy(); // it is gone already
      return;
    }
    const from = plainAddress(remoteAddress);
    this.#sockets.add(socket);
    socket.on('close', () => {
      for (const each of [this.#sockets, this.#strangers, this.#admitted]) each.delete(socket);
    });
    const { admission } = this.#options;
    const { peer, refusal } = admission.judge({ remoteAddress, remotePort, localAddress, localPort });
    if (refusal === null) {
      if (!this.#admit(socket, peer)) {
        socket.end(errorAnswer(TOO_MANY), () => socket.destroy());
        return;
      }
    } else {
      this.#strangers.set(socket, peer);
      if (this.#strangers.size > this.#limits.strangers) this.#dropStranger();
      if (socket.destroyed) return;
    }
    const kind = refusal === null ? 'all' : 'strangers';
    const most = refusal === null ? this.#limits.bytesInAll : this.#limits.bytesOfStrangers;
    const connection = new Connection(socket, {
      mostBytes: this.#limits.bytes,
      patience: this.#limits.patience,
      reserve: (bytes) => {
        if (this.#bytes[kind] + bytes > most) return false;
        this.#bytes[kind] += bytes;
        return true;
      },
      release: (bytes) => {
        this.#bytes[kind] -= bytes;
      },
      answer: (bytes) => this.#answer(bytes, from, { peer, refusal }, socket),
    });
    if (refusal !== null && !admission.hasToken) {
      this.#options.complain(`refused ${from}: ${refusal}`);
      connection.refuse(refusal);
    }
  }

  /** @returns is there a place for it? */
  #admit(socket: Socket, peer: string): boolean {
    let ofPeer = 0;
    for (const each of this.#admitted.values()) if (each === peer) ofPeer++;
    if (this.#admitted.size >= this.#limits.connections || ofPeer >= this.#limits.perPeer) {
      this.#options.complain(`${peer}: ${TOO_MANY}`);
      return false;
    }
    this.#strangers.delete(socket);
    this.#admitted.set(socket, peer);
    return true;
  }

  /** The oldest of whoever has most: whoever has a token sends it at once, and keeps its place so. */
  #dropStranger(): void {
    const counts = new Map<string, number>();
    for (const peer of this.#strangers.values()) counts.set(peer, (counts.get(peer) ?? 0) + 1);
    const most = Math.max(...counts.values());
    for (const [socket, peer] of this.#strangers) {
      if (counts.get(peer) !== most) continue;
      this.#strangers.delete(socket);
      socket.destroy();
      return;
    }
  }

  async #answer(bytes: Buffer, from: string, { peer, refusal }: Judgement, socket: Socket): Promise<Answer> {
    try {
      const request = parseRequest(bytes);
      if (refusal !== null && !this.#options.admission.knows(request.token)) {
        this.#options.complain(`refused ${from}: ${refusal}`);
        return { text: errorAnswer(refusal) };
      }
      if (refusal !== null && !this.#admit(socket, peer)) return { text: errorAnswer(TOO_MANY) };
      return await this.#options.handle(request, from, () => socket.readableEnded);
    } catch (error) {
      const { message } = error as Error;
      if (!(error instanceof RequestError)) {
        this.#options.complain(`a request of ${from} could not be answered: ${sanitize(message, 500)}`);
      }
      return { text: errorAnswer(refusal ?? message) };
    }
  }

  /** Ports are closed at once, and so are connections without an answer after a moment. */
  async close(): Promise<void> {
    const closing = this.#servers.map((server) => new Promise((resolve) => server.close(resolve)));
    const timer = setTimeout(() => {
      for (const socket of this.#sockets) socket.destroy();
    }, 500);
    await Promise.all(closing);
    clearTimeout(timer);
  }
}

function unusable(endpoint: Endpoint, error: NodeJS.ErrnoException): GPUOwnerError {
  const why: Record<string, string> = {
    EACCES: 'it is not allowed (ports below 1024 are for root); choose another port',
    EADDRNOTAVAIL: 'it is no address of this machine; ip address lists them',
  };
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `can't listen on ${formatEndpoint(endpoint)}: ${why[error.code ?? ''] ?? error.message}`,
    { cause: error },
  );
}

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
