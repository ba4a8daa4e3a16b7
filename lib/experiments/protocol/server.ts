import { createServer, type Server, type Socket } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { sanitize } from '../../text.ts';
import { type Endpoint, formatEndpoint, plainAddress } from './addresses.ts';
import type { Admission } from './admission.ts';
import { type Answer, Connection, errorAnswer } from './connection.ts';
import { parseRequest, type Request, RequestError } from './requests.ts';

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
  /** Connections at once. */
  connections: number;
  /** Of one address. */
  perAddress: number;
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
  perAddress: 500,
  strangers: 50,
  bytes: 1024 ** 2,
  bytesInAll: 64 * 1024 ** 2,
  bytesOfStrangers: 4 * 1024 ** 2,
  patience: 10_000,
};

/** Waiting connections of the kernel's, beyond those that are open. */
const BACKLOG = 1_024;

/** The port of a manager: a connection per request. */
export class ProtocolServer {
  readonly #options: ServerOptions;
  readonly #limits: Limits;
  readonly #servers: Server[] = [];
  readonly #sockets = new Set<Socket>();
  readonly #perAddress = new Map<string, number>();
  #strangers = 0;
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
    const open = this.#perAddress.get(from) ?? 0;
    if (this.#sockets.size >= this.#limits.connections || open >= this.#limits.perAddress) {
      this.#options.complain(`${from}: too many connections at once`);
      socket.end(errorAnswer('too many connections at once; try again'), () => socket.destroy());
      return;
    }
    this.#sockets.add(socket);
    this.#perAddress.set(from, open + 1);
    socket.on('close', () => {
      this.#sockets.delete(socket);
      const left = (this.#perAddress.get(from) ?? 1) - 1;
      if (left === 0) this.#perAddress.delete(from);
      else this.#perAddress.set(from, left);
    });
    this.#serve(socket, from, { remoteAddress, remotePort, localAddress, localPort }).catch(
      (error: Error) => {
        this.#options.complain(`${from}: ${error.message}`);
        socket.destroy();
      },
    );
  }

  async #serve(socket: Socket, from: string, ends: Parameters<Admission['refusal']>[0]): Promise<void> {
    const { admission } = this.#options;
    socket.pause();
    const refusal = await admission.refusal(ends);
    if (socket.destroyed) return;
    const isStranger = refusal !== null;
    if (isStranger) {
      if (this.#strangers >= this.#limits.strangers) {
        socket.destroy();
        return;
      }
      this.#strangers++;
      socket.on('close', () => {
        this.#strangers--;
      });
    }
    const kind = isStranger ? 'strangers' : 'all';
    const most = isStranger ? this.#limits.bytesOfStrangers : this.#limits.bytesInAll;
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
      answer: (bytes) => this.#answer(bytes, from, refusal, () => socket.readableEnded),
    });
    if (isStranger && !admission.hasToken) {
      this.#options.complain(`refused ${from}: ${refusal}`);
      connection.refuse(refusal);
    }
    socket.resume();
  }

  async #answer(
    bytes: Buffer,
    from: string,
    refusal: string | null,
    hasEnded: () => boolean,
  ): Promise<Answer> {
    try {
      const request = parseRequest(bytes);
      if (refusal !== null && !this.#options.admission.knows(request.token)) {
        this.#options.complain(`refused ${from}: ${refusal}`);
        return { text: errorAnswer(refusal) };
      }
      return await this.#options.handle(request, from, hasEnded);
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
