// The web server: a page, and the API that it uses. The server reads, and changes nothing.
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { type DiscoveryRequest, ledgerOf } from '../../claims/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { type Job, readSweepTrials, type SweepTrials } from '../../jobs/index.ts';
import { packageRoot } from '../../native.ts';
import {
  type Endpoint,
  formatEndpoint,
  hostName,
  openHTTPServer,
  reuseAnswer,
  type SocketFile,
} from '../../platform/index.ts';
import { CONTENT_TYPE, freshExposition } from '../../prometheus/index.ts';
import { LedgerSums } from '../../usage/index.ts';
import type { FleetView } from '../fleet-view.ts';
import { machineFamilies } from '../machine-metrics.ts';
import type { MachineView } from '../machine-view.ts';
import { Access } from './access.ts';
import { Feed, MAX_VIEWERS, type StreamMachine } from './feed.ts';

export { newToken, readTokenFile } from './access.ts';

interface WebOptions {
  /** The machine whose metrics are served; null: the view has other machines. */
  request: DiscoveryRequest | null;
  endpoint: Endpoint | SocketFile;
  token: string;
  /** Names of this server besides those that it knows itself. */
  hosts: readonly string[];
  intervalMs: number;
  /** The option that names the endpoint, for messages. */
  option: string;
}

interface Reply {
  status: number;
  type: string;
  content: string | Buffer;
  headers?: Readonly<Record<string, string>>;
}

const JSON_TYPE = 'application/json';
const MAX_CONNECTIONS = 2_000;
const IDLE_TIMEOUT_MS = 30_000;
const SWEEPS_FRESH_MS = 2_000;
const USAGE_FRESH_MS = 60_000;
const USAGE_MS = 30 * 86_400_000;

/** The last 30 days of each user, as /api/v1/usage has them. */
export interface UsageAnswer {
  /** In the server's time zone, such as 2026-01-31. */
  days: string[];
  /** The largest sum comes first. None where the machine has no ledger. */
  users: { user: string; uid: number; gpuHours: number[] }[];
}

/** Files of the page: nothing in these files is secret. */
const FILES: Readonly<Record<string, { name: string; type: string }>> = {
  '/': { name: 'index.html', type: 'text/html; charset=utf-8' },
  '/page.js': { name: 'page.js', type: 'text/javascript; charset=utf-8' },
  '/page.css': { name: 'page.css', type: 'text/css; charset=utf-8' },
  '/icon.svg': { name: 'icon.svg', type: 'image/svg+xml' },
  '/api/v1/openapi.json': { name: 'openapi.json', type: JSON_TYPE },
};

const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ');

const SECURITY_HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': CONTENT_SECURITY_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
};

/** Serves the page and the API until the process ends. @returns where it listens @throws ERR_INVALID_ARGUMENT if it can't listen there */
export async function serveWeb(
  view: MachineView | FleetView,
  options: WebOptions,
): Promise<Endpoint | SocketFile> {
  const access = new Access(options.token, options.hosts);
  const feed = new Feed(view, options.intervalMs);
  const { request } = options;
  /** Answers as a command does for this machine; for others, with an object by host. */
  const answerWith = (key: string, of: (machine: StreamMachine) => unknown) => async (): Promise<string> => {
    const machines = await feed.current();
    const [only] = machines;
    if (request === null)
      return JSON.stringify(
        Object.fromEntries(
          machines.map((each) => [each.host, { problem: each.problem, [key]: of(each) ?? null }]),
        ),
      );
    if (feed.failure !== null || only === undefined) throw feed.failure;
    return JSON.stringify(of(only));
  };
  const files = new Map(
    Object.entries(FILES).map(([path, { name, type }]) => [
      path,
      { type, content: readFileSync(join(packageRoot, 'dist/web', name)) },
    ]),
  );
  /** Connections of those who have the token: strangers don't keep them out. */
  const known = new WeakSet<Socket>();

  const contents: Record<string, () => Promise<string>> = {
    '/api/v1/gpus': answerWith('gpus', ({ snapshot }) => snapshot?.gpus),
    '/api/v1/queue': answerWith('queue', ({ snapshot }) => snapshot?.queue),
    '/api/v1/jobs': answerWith('jobs', ({ jobs }) => jobs),
    '/api/v1/history': async () => JSON.stringify(feed.history()),
    ...(request === null
      ? {}
      : {
          '/api/v1/usage': reuseAnswer(usageAnswer(request), USAGE_FRESH_MS),
          '/api/v1/sweeps': reuseAnswer(
            async () => JSON.stringify(sweepsOf((await feed.current())[0]?.jobs ?? [])),
            SWEEPS_FRESH_MS,
          ),
          '/metrics': freshExposition(() => machineFamilies(request)),
        }),
  };

  /** @returns null: it is a viewer now */
  const replyTo = async (request: IncomingMessage, response: ServerResponse): Promise<Reply | null> => {
    const path = request.url?.split('?')[0] ?? '';
    const foreign = access.refuseSource(request);
    if (foreign !== null) return failure(foreign.status, foreign.code, foreign.message);
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      return failure(405, 'read-only', 'this server answers GET and HEAD', {
        allow: 'GET, HEAD',
        connection: 'close',
      });
    }
    const file = files.get(path);
    if (file !== undefined) return { status: 200, ...file };
    const refusal = access.refuseToken(request);
    if (refusal !== null)
      return failure(refusal.status, refusal.code, refusal.message, { 'www-authenticate': 'Bearer' });
    known.add(request.socket);
    if (path === '/api/v1/stream') return stream(request, response, feed);
    const content = Object.hasOwn(contents, path) ? contents[path] : undefined;
    if (content === undefined)
      return failure(404, 'not-found', 'the API is described in /api/v1/openapi.json');
    return { status: 200, type: path === '/metrics' ? CONTENT_TYPE : JSON_TYPE, content: await content() };
  };

  const answer = (request: IncomingMessage, response: ServerResponse): void => {
    for (const [name, value] of Object.entries(SECURITY_HEADERS)) response.setHeader(name, value);
    replyTo(request, response).then(
      (reply) => reply && send(response, reply),
      (error: Error) =>
        send(
          response,
          error instanceof GPUOwnerError
            ? failure(503, error.code, error.message)
            : failure(500, 'internal', error.message),
        ),
    );
  };

  const { endpoint, close } = await openHTTPServer(options.endpoint, answer, {
    option: options.option,
    keepsProcess: true,
    maxConnections: MAX_CONNECTIONS,
    isPreferred: (socket) => known.has(socket),
    idleTimeoutMs: IDLE_TIMEOUT_MS,
  });
  if ('path' in endpoint) {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      process.once(signal, () => {
        close();
        process.kill(process.pid, signal);
      });
    }
  }
  return endpoint;
}

function usageAnswer({ lockDirectory }: DiscoveryRequest): () => Promise<string> {
  let ledger: LedgerSums | null = null;
  return async () => {
    const path = ledgerOf(lockDirectory);
    if (ledger?.path !== path) ledger = path === null ? null : new LedgerSums(path, Date.now() - USAGE_MS);
    const { days, users } = (await ledger?.read()) ?? { days: [], users: [] };
    const sum = (hours: readonly number[]) => hours.reduce((all, each) => all + each, 0);
    const answer: UsageAnswer = {
      days,
      users: users
        .map(({ user, uid, gpuHours }) => ({
          user,
          uid,
          gpuHours: days.map((day) => gpuHours.get(day) ?? 0),
        }))
        .filter(({ gpuHours }) => sum(gpuHours) > 0)
        .sort((a, b) => sum(b.gpuHours) - sum(a.gpuHours)),
    };
    return JSON.stringify(answer);
  };
}

/** A sweep in the background that compares its tasks. */
export interface Sweep extends SweepTrials {
  /** The job's number. */
  job: number;
  name: string | null;
  state: Job['state'];
}

const MAX_SWEEPS = 4;

/** Running sweeps before others, and the newest first. */
function sweepsOf(jobs: readonly Job[]): Sweep[] {
  const found: Sweep[] = [];
  const isRunning = ({ state }: Job) => Number(state === 'running');
  const newest = jobs.toSorted((a, b) => isRunning(b) - isRunning(a) || (b.id ?? 0) - (a.id ?? 0));
  for (const { id, name, state, progress } of newest) {
    const trials = id === null || progress === null ? null : readSweepTrials(id);
    if (id !== null && trials !== null) found.push({ job: id, name, state, ...trials });
    if (found.length === MAX_SWEEPS) break;
  }
  return found;
}

/** Sends a line of JSON per look, until the viewer goes. @returns a reply, if it can't */
function stream({ method, socket }: IncomingMessage, response: ServerResponse, feed: Feed): Reply | null {
  if (feed.isFull)
    return failure(503, 'too-many-viewers', `${MAX_VIEWERS} viewers watch already`, { 'retry-after': '60' });
  const headers = { 'content-type': 'application/x-ndjson', 'x-accel-buffering': 'no' };
  if (method === 'HEAD') return { status: 200, type: headers['content-type'], content: '' };
  response.writeHead(200, headers).flushHeaders();
  socket.setTimeout(0); // the feed drops those who don't read
  feed.add(response);
  return null;
}

function failure(
  status: number,
  code: string,
  message: string,
  headers: Readonly<Record<string, string>> = {},
): Reply {
  return { status, type: JSON_TYPE, content: JSON.stringify({ error: { code, message } }), headers };
}

function send(response: ServerResponse, { status, type, content, headers }: Reply): void {
  const length = Buffer.byteLength(content);
  response.writeHead(status, { 'content-type': type, 'content-length': length, ...headers }).end(content);
}

/** The address of the page. The fragment has the token: browsers send it nowhere, so no log has it. @param token null: people know it */
export function pageURL({ host, port }: Endpoint, token: string | null): string {
  const isAny = /^(0\.0\.0\.0|[0:]+)$/.test(host);
  const at = formatEndpoint({ host: isAny ? hostName() : host, port });
  return `http://${at}/${token === null ? '' : `#token=${token}`}`;
}
