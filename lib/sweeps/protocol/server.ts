import { createServer, type Server, type Socket } from 'node:net';
import { asError, errorCode, GPUOwnerError } from '../../errors.ts';
import { type Endpoint, formatEndpoint, plainAddress, sanitize } from '../../platform/index.ts';
import type { Authentication } from './access.ts';
import { ClientConnection, errorAnswer, type RequestAnswer } from './connection.ts';
import { parseRequest, type Request, RequestError } from './messages.ts';
import { RequestHandler, type RequestHandlerOptions } from './request-handler.ts';

export interface ServerOptions {
  authentication: Authentication;
  /**
   * Answers a request. May reject: then the client gets the error.
   * @param from the client's address @param hasEnded whether the client has closed its end: it may be gone
   */
  handle: (request: Request, from: string, hasEnded: () => boolean) => Promise<RequestAnswer>;
  /** Warns a person. */
  complain: (message: string) => void;
  limits?: Partial<Limits>;
}

export interface Limits {
  /** Simultaneous connections. */
  connections: number;
  /** The size of a request. */
  bytes: number;
  /** How long a request may take to arrive, in ms. */
  timeoutMs: number;
}

const LIMITS: Limits = {
  connections: 250,
  bytes: 1024 ** 2,
  timeoutMs: 10_000,
};

const TOO_MANY = 'too many connections at once; try again';

/** Connections that wait in the kernel, beyond those that are open. */
const BACKLOG = 1_024;

/** Listens on the ports of a manager: one connection per request. */
export class ProtocolServer {
  readonly #options: ServerOptions;
  readonly #limits: Limits;
  readonly #servers: Server[] = [];
  readonly #sockets = new Set<Socket>();

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#limits = { ...LIMITS, ...options.limits };
  }

  /** Connections that are open. */
  get connections(): number {
    return this.#sockets.size;
  }

  /**
   * @returns where it listens now @throws ERR_INVALID_ARGUMENT; NodeJS.ErrnoException with EADDRINUSE if another process does
   */
  async listen(endpoint: Endpoint): Promise<Endpoint> {
    this.#options.authentication.check(endpoint);
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
    const { remoteAddress } = socket;
    socket.on('error', () => socket.destroy());
    if (remoteAddress === undefined) {
      socket.destroy(); // the client is gone already
      return;
    }
    const from = plainAddress(remoteAddress);
    if (this.#sockets.size >= this.#limits.connections) {
      this.#options.complain(`${from}: ${TOO_MANY}`);
      socket.end(errorAnswer(TOO_MANY), () => socket.destroy());
      return;
    }
    this.#sockets.add(socket);
    socket.on('close', () => this.#sockets.delete(socket));
    const { authentication } = this.#options;
    const refusal = authentication.refusalOf(from);
    const connection = new ClientConnection(socket, {
      maxBytes: this.#limits.bytes,
      timeoutMs: this.#limits.timeoutMs,
      answer: (bytes) => this.#answer(bytes, from, refusal, socket),
    });
    if (refusal !== null && !authentication.hasToken) {
      this.#options.complain(`refused ${from}: ${refusal}`);
      connection.refuse(refusal);
    }
  }

  async #answer(bytes: Buffer, from: string, refusal: string | null, socket: Socket): Promise<RequestAnswer> {
    try {
      const request = parseRequest(bytes);
      if (refusal !== null && !this.#options.authentication.knows(request.token)) {
        this.#options.complain(`refused ${from}: ${refusal}`);
        return { text: errorAnswer(refusal) };
      }
      return await this.#options.handle(request, from, () => socket.readableEnded);
    } catch (error) {
      const { message } = asError(error);
      if (!(error instanceof RequestError)) {
        this.#options.complain(`a request of ${from} could not be answered: ${sanitize(message, 500)}`);
      }
      return { text: errorAnswer(refusal ?? message) };
    }
  }

  /** Closes the ports at once, and connections without an answer after half a second. */
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
    EACCES: 'permission denied (ports below 1024 are for root); choose another port',
    EADDRNOTAVAIL: 'this machine does not have this address; `ip address` lists its addresses',
  };
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `can't listen on ${formatEndpoint(endpoint)}: ${why[error.code ?? ''] ?? error.message}`,
    { cause: error },
  );
}

/** How workers of the original system are served. */
export interface ProtocolSettings extends Pick<RequestHandlerOptions, 'lifetime'> {
  endpoints: readonly Endpoint[];
  authentication: Authentication;
}

interface ServiceOptions extends RequestHandlerOptions, ProtocolSettings {}

/** Warnings per minute: a port scan mustn't fill the log. */
const MAX_COMPLAINTS = 10;
const MINUTE_MS = 60_000;

/** The manager's service for workers: listens, waits for ports that are in use, and handles requests. */
export class ProtocolService {
  readonly #options: ServiceOptions;
  readonly #handler: RequestHandler;
  readonly #server: ProtocolServer;
  /** Endpoints that are in use by another process. */
  #taken: Endpoint[];
  #told = false;
  #retrying = false;
  #complaints = { since: 0, count: 0 };
  /** Messages for the moment when it is opened; null: it is open. */
  #news: string[] | null = [];
  /** Requests wait for it. */
  readonly #opened: Promise<void>;
  #open: () => void = () => {};

  constructor(options: ServiceOptions) {
    this.#options = options;
    this.#taken = [...options.endpoints];
    this.#handler = new RequestHandler(options);
    this.#opened = new Promise((resolve) => {
      this.#open = resolve;
    });
    this.#server = new ProtocolServer({
      authentication: options.authentication,
      handle: async (request, from, hasEnded) => {
        if (this.#news !== null) {
          await this.#opened;
          // A worker that has timed out asks again: no worker would run this task.
          if (request.type === 'request_task' && hasEnded())
            throw new RequestError('this manager was not ready yet; ask again');
        }
        return this.#handler.handle(request, from);
      },
      complain: (message) => this.#complain(message),
    });
  }

  /** Whether all workers that got tasks know that there is nothing left. */
  get isQuiet(): boolean {
    return this.#handler.isQuiet;
  }

  /** Begins to answer requests. */
  open(): void {
    for (const text of this.#news ?? []) this.#options.tell(text);
    this.#news = null;
    this.#open();
  }

  /**
   * Listens on endpoints that are free; the next call tries the others again. Requests wait for {@link open}.
   * @param alone whether this process manages: then another process that listens is no manager of this experiment
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
        if (errorCode(error) !== 'EADDRINUSE') throw error;
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
    this.#options.tell(`${where} is in use, perhaps by the other manager; trying again until it is free`);
  }

  /** Listens on endpoints that were in use until now. Never fails. */
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
    if (now - this.#complaints.since > MINUTE_MS) this.#complaints = { since: now, count: 0 };
    if (++this.#complaints.count < MAX_COMPLAINTS) this.#options.tell(`warning: ${message}`);
    else if (this.#complaints.count === MAX_COMPLAINTS) {
      this.#options.tell(`warning: ${message}; further warnings are dropped for a minute`);
    }
  }

  close(): Promise<void> {
    this.#handler.close();
    return this.#server.close();
  }
}
