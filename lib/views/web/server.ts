// The web server: a page, and the API that it uses. The server reads, and changes nothing.
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { DiscoveryRequest } from '../../claims/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { packageRoot } from '../../native.ts';
import { type Endpoint, formatEndpoint, hostName, openHTTPServer } from '../../platform/index.ts';
import { CONTENT_TYPE } from '../../prometheus/index.ts';
import type { FleetView } from '../fleet-view.ts';
import type { MachineView } from '../machine-view.ts';
import { Access } from './access.ts';
import { type Answers, answersHere, answersOfHosts } from './answers.ts';
import { Feed, MAX_VIEWERS } from './feed.ts';
import { Logs } from './logs.ts';

export { newToken, readTokenFile } from './access.ts';

interface WebOptions {
  /** The machine whose metrics are served; null: the view has other machines. */
  request: DiscoveryRequest | null;
  endpoint: Endpoint;
  token: string;
  /** Names of this server besides those that it knows itself. */
  hosts: readonly string[];
  intervalMs: number;
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

/** Files of the page: nothing in these files is secret. */
const FILES: Readonly<Record<string, { name: string; type: string }>> = {
  '/': { name: 'index.html', type: 'text/html; charset=utf-8' },
  '/page.js': { name: 'page.js', type: 'text/javascript; charset=utf-8' },
  '/page.css': { name: 'page.css', type: 'text/css; charset=utf-8' },
  '/icon.svg': { name: 'icon.svg', type: 'image/svg+xml' },
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
export async function serveWeb(view: MachineView | FleetView, options: WebOptions): Promise<Endpoint> {
  const site = new Site(view, options);
  const { endpoint } = await openHTTPServer(
    options.endpoint,
    (request, response) => site.answer(request, response),
    {
      maxConnections: MAX_CONNECTIONS,
      isPreferred: (socket) => site.knows(socket),
      idleTimeoutMs: IDLE_TIMEOUT_MS,
    },
  );
  return endpoint;
}

/** Answers requests: files of the page for everybody, and the API for those who have the token. */
class Site {
  readonly #access: Access;
  readonly #feed: Feed;
  readonly #logs: Logs;
  readonly #answers: Answers;
  readonly #files = readFiles();
  /** Connections of those who have the token: strangers don't keep them out. */
  readonly #known = new WeakSet<Socket>();

  constructor(view: MachineView | FleetView, { request, token, hosts, intervalMs }: WebOptions) {
    this.#access = new Access(token, hosts);
    this.#feed = new Feed(view, intervalMs);
    this.#logs = new Logs('hosts' in view ? view.hosts : null);
    this.#answers = request === null ? answersOfHosts(this.#feed) : answersHere(this.#feed, request);
  }

  knows(socket: Socket): boolean {
    return this.#known.has(socket);
  }

  answer(request: IncomingMessage, response: ServerResponse): void {
    for (const [name, value] of Object.entries(SECURITY_HEADERS)) response.setHeader(name, value);
    this.#reply(request, response).then(
      (reply) => reply && send(response, reply),
      (error: Error) => {
        if (response.headersSent) response.destroy();
        else if (error instanceof GPUOwnerError) send(response, failure(503, error));
        else send(response, failure(500, { code: 'internal', message: error.message }));
      },
    );
  }

  /** @returns null: the answer is sent already, or goes on */
  async #reply(request: IncomingMessage, response: ServerResponse): Promise<Reply | null> {
    const { method, url = '', socket } = request;
    const foreign = this.#access.refuseSource(request);
    if (foreign !== null) return failure(foreign.status, foreign);
    if (method !== 'GET' && method !== 'HEAD') {
      const error = { code: 'read-only', message: 'this server answers GET and HEAD' };
      return failure(405, error, { allow: 'GET, HEAD', connection: 'close' });
    }
    const [path = '', query] = url.split('?');
    const file = this.#files.get(path);
    if (file !== undefined) return { status: 200, ...file };
    const refusal = this.#access.refuseToken(request);
    if (refusal !== null) return failure(refusal.status, refusal, { 'www-authenticate': 'Bearer' });
    this.#known.add(socket);
    if (path === '/api/v1/stream') return stream(request, response, this.#feed);
    const [, job] = /^\/api\/v1\/jobs\/([^/]+)\/log$/.exec(path) ?? [];
    if (job !== undefined) {
      const follow = method === 'GET' && new URLSearchParams(query).get('follow') === 'true';
      const refused = await this.#logs.send(decoded(job), follow, response);
      return refused && failure(refused.status, refused);
    }
    const answer = Object.hasOwn(this.#answers, path) ? this.#answers[path] : undefined;
    if (answer === undefined)
      return failure(404, { code: 'not-found', message: 'gpu-owner docs status lists the paths' });
    return { status: 200, type: path === '/metrics' ? CONTENT_TYPE : JSON_TYPE, content: await answer() };
  }
}

/** Programs may write gpu1%3A17. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function readFiles(): ReadonlyMap<string, { type: string; content: Buffer }> {
  const files = Object.entries(FILES).map(([path, { name, type }]) => {
    const content = readFileSync(join(packageRoot, 'dist/web', name));
    return [path, { type, content }] as const;
  });
  return new Map(files);
}

/** Sends a line of JSON per look, until the viewer goes. @returns a reply, if it can't */
function stream({ method, socket }: IncomingMessage, response: ServerResponse, feed: Feed): Reply | null {
  if (feed.isFull) {
    const error = { code: 'too-many-viewers', message: `${MAX_VIEWERS} viewers watch already` };
    return failure(503, error, { 'retry-after': '60' });
  }
  const headers = { 'content-type': 'application/x-ndjson', 'x-accel-buffering': 'no' };
  if (method === 'HEAD') return { status: 200, type: headers['content-type'], content: '' };
  response.writeHead(200, headers).flushHeaders();
  socket.setTimeout(0); // the feed drops those who don't read
  feed.add(response);
  return null;
}

function failure(
  status: number,
  { code, message }: { code: string; message: string },
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
