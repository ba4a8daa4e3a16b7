// HTTP servers that every user can connect to. Node.js' modules for them take milliseconds to load: those who listen load them.
import { lstatSync, realpathSync, type Stats, statSync, unlinkSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { dirname } from 'node:path';
import { asError, errorCode, GPUOwnerError } from '../errors.ts';
import { type Endpoint, formatEndpoint, isLoopback, type SocketFile } from './endpoint.ts';
import { privately } from './files.ts';
import { userName } from './processes.ts';
import { errorReason, hostName } from './system.ts';
import { showValue } from './text.ts';

/** A server that listens. */
interface HTTPServer<At extends Endpoint | SocketFile = Endpoint> {
  /** With the port that it got. */
  endpoint: At;
  close(): void;
}

interface HTTPServerOptions {
  /** The option that names the endpoint, for messages. */
  option: string;
  /** The process doesn't end while the server is open. */
  keepsProcess?: boolean;
  /** More make the server close others. */
  maxConnections: number;
  /** Connections that are closed last, if there are too many. */
  isPreferred: (socket: Socket) => boolean;
  /** How long a connection may be silent; default: for ever, once it has asked. */
  idleTimeoutMs?: number;
}

/**
 * Serves HTTP. Connections that don't ask, or ask slowly, are closed, and too many of them don't keep others out.
 * A socket is for its owner alone (mode 0700), and is removed when the server is closed.
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function openHTTPServer<At extends Endpoint | SocketFile>(
  endpoint: At,
  answer: (request: IncomingMessage, response: ServerResponse) => void,
  { option, keepsProcess = false, maxConnections, isPreferred, idleTimeoutMs = 0 }: HTTPServerOptions,
): Promise<HTTPServer<At>> {
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
  const where = 'path' in endpoint ? showValue(endpoint.path) : formatEndpoint(endpoint);
  const refuse = (why: string, cause?: Error) =>
    new GPUOwnerError('ERR_INVALID_ARGUMENT', `${option} ${where}: can't listen there: ${why}`, { cause });
  if ('path' in endpoint) await makeWay(endpoint.path, refuse);
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      // Node's own message names the address once more.
      reject(refuse(`${errorReason(error)}; choose another ${'path' in endpoint ? 'file' : 'port'}`, error));
    });
    // A socket has its mode from the moment when it is there.
    privately(() => server.listen({ ...endpoint }, resolve));
  });
  server.on('error', () => {});
  if (!keepsProcess) server.unref();
  const address = server.address();
  return {
    endpoint: typeof address === 'object' ? { ...endpoint, port: address?.port } : endpoint,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Bytes of the path of a Unix socket (unix(7)). */
const MAX_SOCKET_PATH_BYTES = 107;

/** Checks that no other user can put a socket there, and removes one that a killed server has left. */
async function makeWay(path: string, refuse: (why: string, cause?: Error) => GPUOwnerError): Promise<void> {
  if (Buffer.byteLength(path) > MAX_SOCKET_PATH_BYTES)
    throw refuse(`a socket's path has at most ${MAX_SOCKET_PATH_BYTES} bytes; choose a shorter one`);
  const isTrusted = ({ uid }: Stats) => uid === 0 || uid === process.geteuid?.();
  try {
    for (let inner = path, at = realpathSync(dirname(path)); at !== inner; inner = at, at = dirname(at)) {
      const stat = statSync(at);
      // Others could put a socket of theirs in its place, and be told the token. Sticky is not enough for a file that comes and goes.
      const isOpen = (stat.mode & 0o022) !== 0 && (inner === path || (stat.mode & 0o1000) === 0);
      if (!isTrusted(stat) || isOpen)
        throw refuse(
          `others may replace files in ${showValue(at)}; choose a directory that only you may write to`,
        );
    }
  } catch (error) {
    if (error instanceof GPUOwnerError) throw error;
    const code = errorCode(error);
    const why = code === 'ENOENT' ? `there is no directory ${showValue(dirname(path))}` : errorReason(error);
    throw refuse(`${why}; choose another file`, asError(error));
  }
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket() || !isTrusted(found))
    throw refuse(
      `there is ${found.isSocket() ? `a socket of ${userName(found.uid)}` : 'something else'}; choose another file`,
    );
  if (await isServed(path)) throw refuse('a server listens there already; choose another file, or end it');
  if (lstatSync(path, { throwIfNoEntry: false })?.ino === found.ino) unlinkSync(path);
}

function isServed(path: string): Promise<boolean> {
  const { connect } = process.getBuiltinModule('node:net');
  return new Promise((resolve) => {
    const socket = connect({ path });
    socket.on('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code !== 'ECONNREFUSED'));
  });
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
