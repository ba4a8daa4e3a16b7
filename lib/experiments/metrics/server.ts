import type { Socket } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { type Endpoint, formatEndpoint } from '../protocol/index.ts';

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
 * Serves `/metrics` to Prometheus. It keeps no process alive. Anybody who can connect may ask: the families are collected once a second at
 * most, and idle connections don't keep others out.
 * @param families collects the current values
 * @throws ERR_INVALID_ARGUMENT if it can't listen there
 */
export async function serveMetrics(
  endpoint: Endpoint,
  families: () => Promise<Family[]>,
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
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 5_000 }, (request, response) => {
    askers.add(request.socket);
    const path = request.url?.split('?')[0];
    if (request.method !== 'GET' && request.method !== 'HEAD') {
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

/** A number, and the labels that tell it from others of its name. */
export interface Sample {
  /** `_bucket`, `_sum` or `_count` of a histogram. */
  suffix?: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Samples of one name. */
export interface Family {
  /** Without the suffixes of samples. */
  name: string;
  type: 'gauge' | 'counter' | 'histogram';
  help: string;
  samples: readonly Sample[];
}

const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Formats families as text for Prometheus, version 0.0.4 of the format. */
function exposition(families: readonly Family[]): string {
  return families
    .map(({ name, type, help, samples }) => {
      const lines = samples.map(
        ({ suffix = '', labels, value }) => `${name}${suffix}${formatLabels(labels)} ${formatValue(value)}\n`,
      );
      const explained = help.replace(/\\/g, '\\\\').replace(/\n/g, '\\n');
      return `# HELP ${name} ${explained}\n# TYPE ${name} ${type}\n${lines.join('')}`;
    })
    .join('');
}

function formatLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([key, value]) => {
    const escaped = value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n');
    return `${key}="${escaped}"`;
  });
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function formatValue(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  return Number.isFinite(value) ? String(value) : value > 0 ? '+Inf' : '-Inf';
}
