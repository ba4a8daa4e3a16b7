import type { Socket } from 'node:net';
import {
  type Endpoint,
  formatEndpoint,
  isLocalHost,
  isLoopback,
  openHTTPServer,
  reuseAnswer,
} from '../platform/index.ts';
import { CONTENT_TYPE, exposition, type Family } from './exposition.ts';

/** A server of metrics. */
export interface MetricsServer {
  /** Where they are: http://127.0.0.1:9105/metrics */
  url: string;
  close(): void;
}

const MAX_CONNECTIONS = 100;
/** How long an answer is reused for other requests. */
const FRESH_MS = 1_000;

/**
 * Serves `/metrics` to Prometheus. Anybody who can connect may ask: the families are collected once a second at most, and idle
 * connections don't keep others out. On a loopback address, requests must name this machine: a page in a user's browser can
 * make a name of its own lead here.
 * @param families collects the current values
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function serveMetrics(
  endpoint: Endpoint,
  families: () => Promise<Family[]>,
): Promise<MetricsServer> {
  const text = freshExposition(families);
  // Prometheus asks at once, so the oldest connection that has asked nothing is closed first.
  const askers = new WeakSet<Socket>();
  const mayAsk = isLoopback(endpoint.host) ? isLocalHost : () => true;
  const server = await openHTTPServer(
    endpoint,
    (request, response) => {
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
          (error: Error) =>
            response.writeHead(503, { 'content-type': 'text/plain' }).end(`${error.message}\n`),
        );
      }
    },
    {
      maxConnections: MAX_CONNECTIONS,
      isPreferred: (socket) => askers.has(socket),
    },
  );
  return { url: `http://${formatEndpoint(server.endpoint)}/metrics`, close: server.close };
}

/** The text of families, which are collected once a second at most, however many ask. */
export function freshExposition(families: () => Promise<Family[]>): () => Promise<string> {
  return reuseAnswer(() => families().then(exposition), FRESH_MS);
}
