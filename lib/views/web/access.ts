// Who may ask: those who have the token, from a page of this server, under a name of this server.
import { closeSync, constants, openSync, readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { GPUOwnerError } from '../../errors.ts';
import {
  hostIn,
  isLocalHost,
  plainAddress,
  showValue,
  statusBehind,
  systemError,
} from '../../platform/index.ts';

/** Why a request is refused. */
export interface RequestRefusal {
  status: 401 | 403;
  code: 'foreign-host' | 'foreign-origin' | 'wrong-token';
  message: string;
}

const TOKEN_BYTES = 32;
const MIN_TOKEN_LENGTH = 32;
const MAX_TOKEN_LENGTH = 512;

/** The rules for requests. */
export class Access {
  readonly #digest: Buffer;
  readonly #hosts: ReadonlySet<string>;

  /** @param hosts names of this server besides those that it knows itself */
  constructor(token: string, hosts: readonly string[]) {
    this.#digest = digest(token);
    this.#hosts = new Set(hosts.map((name) => name.toLowerCase()));
  }

  /** Why nobody may ask so, whatever their token; null: they may. */
  refuseSource({ headers, socket }: IncomingMessage): RequestRefusal | null {
    const { host = '', origin } = headers;
    const name = hostIn(host);
    // An address that a browser is told is the one that it asks; a name can be made to lead anywhere.
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
    const { host: from, hostname } = parseURL(origin) ?? {};
    return from === host.toLowerCase() || this.#hosts.has(hostname ?? '');
  }

  /** Why a request without the token is refused; null: it has it. */
  refuseToken({ headers }: IncomingMessage): RequestRefusal | null {
    const [, given = ''] = /^Bearer +(\S+)$/i.exec(headers.authorization ?? '') ?? [];
    const { timingSafeEqual } = process.getBuiltinModule('node:crypto');
    if (timingSafeEqual(digest(given), this.#digest)) return null;
    const message = given === '' ? 'the header Authorization: Bearer TOKEN is missing' : 'the token is wrong';
    return { status: 401, code: 'wrong-token', message };
  }
}

/** Makes tokens of one length comparable in constant time. */
function digest(token: string): Buffer {
  return process.getBuiltinModule('node:crypto').createHash('sha256').update(token).digest();
}

function parseURL(text: string): URL | null {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

export function newToken(): string {
  return process.getBuiltinModule('node:crypto').randomBytes(TOKEN_BYTES).toString('base64url');
}

/** @throws ERR_INVALID_ARGUMENT */
export function readTokenFile(path: string, option: string): string {
  const refusal = (why: string) =>
    new GPUOwnerError('ERR_INVALID_ARGUMENT', `${option} ${showValue(path)} ${why}`);
  let text = '';
  let file = -1;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const status = statusBehind(file);
    if (status?.kind !== 'file') throw refusal('is not a file');
    if ((status.mode & 0o007) !== 0) throw refusal(`is open to everybody; run chmod o= ${path}`);
    if (status.size > 2 * MAX_TOKEN_LENGTH) throw refusal('is too large for a token');
    text = readFileSync(file, 'utf8').trim();
  } catch (error) {
    if (error instanceof GPUOwnerError) throw error;
    throw refusal(
      `can't be read (${systemError(-((error as NodeJS.ErrnoException).errno ?? 0))}); make it with: (umask 077; openssl rand -hex 32 >FILE)`,
    );
  } finally {
    if (file >= 0) closeSync(file);
  }
  if (!/^[\w.~+/=-]*$/.test(text)) throw refusal('has more than letters, digits and -._~+/=');
  if (text.length < MIN_TOKEN_LENGTH || text.length > MAX_TOKEN_LENGTH) {
    throw refusal(
      `needs ${MIN_TOKEN_LENGTH} to ${MAX_TOKEN_LENGTH} characters; openssl rand -hex 32 makes good ones`,
    );
  }
  return text;
}
