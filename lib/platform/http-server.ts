// HTTP servers that every user can connect to. Node.js' modules for them take milliseconds to load: those who listen load them.
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { GPUOwnerError } from '../errors.ts';
import { type Endpoint, formatEndpoint, isLoopback } from './endpoint.ts';
import { errorReason, hostName } from './system.ts';

/** A server that listens. */
interface HTTPServer {
  /** With the port that it got. */
  endpoint: Endpoint;
  close(): void;
}

interface HTTPServerOptions {
  /** More make the server close others. */
  maxConnections: number;
  /** Connections that are closed last, if there are too many. */
  isPreferred: (socket: Socket) => boolean;
  /** How long a connection may be silent; default: for ever, once it has asked. */
  idleTimeoutMs?: number;
}

/**
 * Serves HTTP, and keeps the process. Connections that don't ask, or ask slowly, are closed, and too many of them don't keep others out.
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function openHTTPServer(
  endpoint: Endpoint,
  answer: (request: IncomingMessage, response: ServerResponse) => void,
  { maxConnections, isPreferred, idleTimeoutMs = 0 }: HTTPServerOptions,
): Promise<HTTPServer> {
  const { createServer } = process.getBuiltinModule('node:http');
  const connections = new Set<Socket>();
  // Node.js looks for late ones every 30 s otherwise.
  const timeouts = { requestTimeout: 10_000, headersTimeout: 5_000, connectionsCheckingInterval: 1_000 };
  const server = createServer(timeouts, answer);
  server.timeout = idleTimeoutMs;
  server.on('connection', (socket) => {
    connections.add(socket);
    socket.on('close', () => connections.delete(socket));
    if (connections.size <= maxConnections) return;
    connections.delete(socket);
    const oldest = first(connections, (each) => !isPreferred(each)) ?? first(connections, () => true);
    connections.add(socket);
    if (oldest !== undefined) {
      connections.delete(oldest);
      oldest.destroy();
    }
  });
  const refuse = (why: string, cause?: Error) =>
    new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `--listen ${formatEndpoint(endpoint)}: can't listen there: ${why}`,
      { cause },
    );
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      // Node's own message names the address once more.
      reject(refuse(`${errorReason(error)}; choose another port`, error));
    });
    server.listen({ ...endpoint }, resolve);
  });
  server.on('error', () => {});
  const address = server.address();
  return {
    endpoint: typeof address === 'object' ? { ...endpoint, port: address?.port ?? endpoint.port } : endpoint,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** The oldest is the first. */
function first(connections: ReadonlySet<Socket>, isWanted: (socket: Socket) => boolean): Socket | undefined {
  for (const socket of connections) if (isWanted(socket)) return socket;
  return undefined;
}

/**
 * Whether a `Host` header names this machine as its own users do: a page in a user's browser can make a name of its own lead
 * here.
 * @param host with the port; HTTP 1.0 has none
 */
export function isLocalHost(host: string | undefined): boolean {
  if (host === undefined) return true;
  const name = hostIn(host);
  return name === 'localhost' || name === hostName().toLowerCase() || isLoopback(name);
}

/** The name or address in a `Host` header, in lower case, without port and brackets. */
export function hostIn(header: string): string {
  return header
    .replace(/:\d*$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .toLowerCase();
}
