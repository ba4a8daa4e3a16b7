// Access control: only clients that have the token may ask, from a page of this server, under a name of this server.
import type { IncomingMessage } from 'node:http';
import { GPUOwnerError } from '../../errors.ts';
import {
  hostIn,
  isLocalHost,
  plainAddress,
  readToken,
  showValue,
  tokenDigest,
} from '../../platform/index.ts';

/** Why a request is refused. */
interface RequestRefusal {
  status: 401 | 403;
  code: 'foreign-host' | 'foreign-origin' | 'wrong-token';
  message: string;
}

const TOKEN_BYTES = 32;

/** The rules for requests. */
export class Access {
  readonly #digest: Buffer;
  readonly #hosts: ReadonlySet<string>;

  /** @param hosts names of this server besides those that it knows itself */
  constructor(token: string, hosts: readonly string[]) {
    this.#digest = tokenDigest(token);
    this.#hosts = new Set(hosts.map((name) => name.toLowerCase()));
  }

  /** Why a request is refused with any token; null: it isn't. */
  refuseSource({ headers: { origin }, headersDistinct, socket }: IncomingMessage): RequestRefusal | null {
    // Several are no name of this server, whichever comes first: proxies may have judged by another one.
    const host = headersDistinct.host?.join(', ') ?? '';
    const name = hostIn(host);
    // A browser asks exactly the address that it was given; a name can be made to lead anywhere.
    const isOwn = isLocalHost(host) || name === plainAddress(socket.localAddress ?? '').toLowerCase();
    if (!isOwn && !this.#hosts.has(name)) {
      return {
        status: 403,
        code: 'foreign-host',
        message: `${showValue(name)} is not a name of this server; start it with --allow-host NAME`,
      };
    }
    if (origin === undefined || this.#isOwnOrigin(origin, host)) return null;
    return {
      status: 403,
      code: 'foreign-origin',
      message: `pages of ${showValue(origin)} may not ask this server`,
    };
  }

  /** Other ports of this machine have servers of other users. */
  #isOwnOrigin(origin: string, host: string): boolean {
    const { host: from, hostname = '', port } = parseURL(origin) ?? {};
    // A proxy may ask under another name. Then the page is on the port of its scheme, or the proxy passes on the whole name.
    return from === host.toLowerCase() || (this.#hosts.has(hostname) && port === '');
  }

  /** Why a request without the token is refused; null: it has it. */
  refuseToken({ headers }: IncomingMessage): RequestRefusal | null {
    const [, given = ''] = /^Bearer +(\S+)$/i.exec(headers.authorization ?? '') ?? [];
    const { timingSafeEqual } = process.getBuiltinModule('node:crypto');
    if (timingSafeEqual(tokenDigest(given), this.#digest)) return null;
    const message = given === '' ? 'the header Authorization: Bearer TOKEN is missing' : 'the token is wrong';
    return { status: 401, code: 'wrong-token', message };
  }
}

function parseURL(text: string): URL | null {
  return URL.canParse(text) ? new URL(text) : null;
}

export function newToken(): string {
  return process.getBuiltinModule('node:crypto').randomBytes(TOKEN_BYTES).toString('base64url');
}

/** Reads the token in a file; a header must be able to carry it. @throws ERR_CONFIGURATION */
export function readTokenFile(path: string): string {
  const token = readToken(path);
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new GPUOwnerError(
    'ERR_CONFIGURATION',
    `--token-file ${showValue(path)}: the token has blanks or characters beyond ASCII; openssl rand -hex 32 > FILE makes a good one`,
  );
}
