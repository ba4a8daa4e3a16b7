import { createServer } from 'node:http';
import { GPUOwnerError } from '../../errors.ts';
import { type Endpoint, formatEndpoint } from '../protocol/addresses.ts';
import { CONTENT_TYPE, exposition, type Family } from './exposition.ts';

/** A server of metrics. */
export interface MetricsServer {
  /** Where they are: http://127.0.0.1:9105/metrics */
  url: string;
  close(): void;
}

const MOST_CONNECTIONS = 100;

/**
 * Serves `/metrics` to Prometheus. It keeps no process alive.
 * @param families asked for each time
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function serveMetrics(
  endpoint: Endpoint,
  families: () => Promise<Family[]>,
): Promise<MetricsServer> {
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, (request, response) => {
    const path = request.url?.split('?')[0];
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.writeHead(405, { allow: 'GET, HEAD' }).end();
    } else if (path !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('metrics are at /metrics\n');
    } else {
      families().then(
        (all) => response.writeHead(200, { 'content-type': CONTENT_TYPE }).end(exposition(all)),
        (error: Error) => response.writeHead(503, { 'content-type': 'text/plain' }).end(`${error.message}\n`),
      );
    }
  });
  server.maxConnections = MOST_CONNECTIONS;
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) =>
      reject(
        new GPUOwnerError(
          'ERR_INVALID_ARGUMENT',
          `--metrics ${formatEndpoint(endpoint)}: can't listen there: ${error.message}; choose another port`,
          { cause: error },
        ),
      ),
    );
    server.listen({ ...endpoint }, resolve);
  });
  server.on('error', () => {});
  server.unref();
  const { port } = server.address() as { port: number };
  return {
    url: `http://${formatEndpoint({ ...endpoint, port })}/metrics`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}
