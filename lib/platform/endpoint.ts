// Where a server listens, and the secret that it asks for. Modules of Node.js that take milliseconds to load are loaded by those who listen.
import { closeSync, constants, fstatSync, openSync } from 'node:fs';
import { errorCode, GPUOwnerError } from '../errors.ts';
import { invalidValue, usageError } from './argument.ts';
import { decode, readAtMost } from './files.ts';
import { sanitize, showValue } from './text.ts';

/** An address to listen on. */
export interface Endpoint {
  /** An IP address. */
  host: string;
  /** 0: any that is free. */
  port: number;
}

/**
 * `5000`, `0.0.0.0:5000`, `[::]:5000`, `gpu-server:5000`; without a host, 127.0.0.1.
 * @throws ERR_INVALID_ARGUMENT
 */
export async function parseEndpoint(text: string): Promise<Endpoint> {
  const [, bracketed, name, digits] = /^(?:(?:\[([^\]]+)\]|([^:[\]]+)):)?(\d{1,5})$/.exec(text) ?? [];
  const port = Number(digits);
  if (digits === undefined || port > 65_535) {
    throw invalidValue('--listen', text, 'an address to listen on', `use PORT, HOST:PORT or [IPV6]:PORT`);
  }
  const host = bracketed ?? name ?? '127.0.0.1';
  if (process.getBuiltinModule('node:net').isIP(host) !== 0) return { host, port };
  if (host === 'localhost') return { host: '127.0.0.1', port };
  const { lookup } = process.getBuiltinModule('node:dns/promises');
  try {
    return { host: (await lookup(host)).address, port };
  } catch (error) {
    const code = errorCode(error);
    throw usageError(
      `--listen: the host ${showValue(host)} can't be found (${sanitize(code ?? '')}); write its IP address`,
    );
  }
}

/** Turns ::ffff:10.0.0.7 into 10.0.0.7: sockets for both versions of IP have IPv4 addresses so. */
export function plainAddress(address: string): string {
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
}

/** Whether an address, and no name, is one that only processes of this machine reach. */
export function isLoopback(address: string): boolean {
  // A scope, as in fe80::1%eth0, is no part of the number.
  const [plain = ''] = plainAddress(address).split('%');
  return /^127(?:\.\d{1,3}){3}$/.test(plain) || /^[0:]*:0*1$/.test(plain);
}

/** `127.0.0.1:5000`, `[::1]:5000` */
export function formatEndpoint({ host, port }: Endpoint): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

const MIN_TOKEN_LENGTH = 16;
const MAX_TOKEN_BYTES = 4096;

/** Reads the secret in a file, without blanks around it. @throws ERR_CONFIGURATION */
export function readToken(path: string): string {
  const refuse = (why: string, cause?: unknown) =>
    new GPUOwnerError('ERR_CONFIGURATION', `--token-file ${sanitize(path, 300)}: ${why}`, { cause });
  let file: number;
  try {
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    throw refuse(`it can't be opened (${errorCode(error)})`, error);
  }
  try {
    const { mode, size, uid } = fstatSync(file);
    if ((mode & 0o077) !== 0) {
      throw refuse(`others may read it, or write to it; chmod 600 ${sanitize(path, 300)}`);
    }
    if (uid !== 0 && uid !== process.geteuid?.()) {
      throw refuse(`it belongs to the user ${uid}, who knows the token; use a file of your own`);
    }
    const most = `it has ${size} bytes; a token has at most ${MAX_TOKEN_BYTES}`;
    const token = decode(readAtMost(file, MAX_TOKEN_BYTES, most, refuse), refuse).trim();
    if (token.length < MIN_TOKEN_LENGTH) {
      throw refuse(
        `the token has ${token.length} characters; it needs ${MIN_TOKEN_LENGTH} or more, so that nobody can guess it: openssl rand -hex 32 > FILE makes one`,
      );
    }
    return token;
  } finally {
    closeSync(file);
  }
}

/** Makes tokens of any length comparable in constant time. */
export function tokenDigest(token: string): Buffer {
  return process.getBuiltinModule('node:crypto').createHash('sha256').update(token).digest();
}
