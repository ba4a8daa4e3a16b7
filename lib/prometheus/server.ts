import type { Socket } from 'node:net';
import { GPUOwnerError } from '../errors.ts';
import { type Endpoint, formatEndpoint, hostName, isLoopback } from '../platform/index.ts';
import { CONTENT_TYPE, exposition, type Family } from './exposition.ts';

/** A server of metrics. */
export interface MetricsServer {
  /** Where they are: http://127.0.0.1:9105/metrics */
  url: string;
  close(): void;
}

interface ServerOptions {
  /** The option that names the endpoint, for messages. */
  option?: string;
  /** The process doesn't end while the server is open. */
  keepsProcess?: boolean;
}

const MAX_CONNECTIONS = 100;
/** How long an answer is reused for other requests. */
const FRESH_MS = 1_000;

/**
 * Serves `/metrics` to Prometheus. Anybody who can connect may ask: the families are collected once a second at most, and idle
 * connections don't keep others out. On a loopback address, requests must name this machine: a page in somebody's browser can make a
 * name of its own lead here.
 * @param families collects the current values
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function serveMetrics(
  endpoint: Endpoint,
  families: () => Promise<Family[]>,
  { option = '--metrics', keepsProcess = false }: ServerOptions = {},
): Promise<MetricsServer> {
  let fresh: Promise<string> | null = null;
  const text = () => {
    if (fresh !== null) return fresh;
    const asked = families().then(exposition);
    fresh = asked;
    const forget = () => {
      fresh = null;
    };
    asked.then(() => setTimeout(forget, FRESH_MS).unref(), forget);
    return asked;
  };
  const connections = new Set<Socket>();
  const askers = new WeakSet<Socket>();
  const { createServer } = process.getBuiltinModule('node:http'); // takes some ms to load
  const mayAsk = isLoopback(endpoint.host) ? isLocalHost : () => true;
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, (request, response) => {
    askers.add(request.socket);
    const path = request.url?.split('?')[0];
    if (!mayAsk(request.headers.host)) {
      response.writeHead(403, { 'content-type': 'text/plain' }).end('ask for this machine as localhost\n');
    } else if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.writeHead(405, { allow: 'GET, HEAD' }).end();
    } else if (path !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('metrics are at /metrics\n');
    } else {
      text().then(
        (all) => response.writeHead(200, { 'content-type': CONTENT_TYPE }).end(all),
        (error: Error) => response.writeHead(503, { 'content-type': 'text/plain' }).end(`${error.message}\n`),
      );
    }
  });
  server.on('connection', (socket) => {
    connections.add(socket);
    socket.on('close', () => connections.delete(socket));
    if (connections.size <= MAX_CONNECTIONS) return;
    // Prometheus asks at once, so the oldest connection that has asked nothing is closed first.
    const [oldest] = connections;
    ([...connections].find((each) => !askers.has(each)) ?? oldest)?.destroy();
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) =>
      reject(
        new GPUOwnerError(
          'ERR_INVALID_ARGUMENT',
          `${option} ${formatEndpoint(endpoint)}: can't listen there: ${error.message}; choose another port`,
          { cause: error },
        ),
      ),
    );
    server.listen({ ...endpoint }, resolve);
  });
  server.on('error', () => {});
  if (!keepsProcess) server.unref();
  const { port } = server.address() as { port: number };
  return {
    url: `http://${formatEndpoint({ ...endpoint, port })}/metrics`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** @param host as the header says, with the port; HTTP 1.0 has none */
function isLocalHost(host: string | undefined): boolean {
  if (host === undefined) return true;
  const name = host
    .replace(/:\d*$/, '')
    .replace(/^\[(.*)\]$/, '$1')
    .toLowerCase();
  return name === 'localhost' || name === hostName().toLowerCase() || isLoopback(name);
}
