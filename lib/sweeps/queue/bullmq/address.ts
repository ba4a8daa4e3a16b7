import { accessSync, closeSync, constants, fstatSync, openSync, readFileSync } from 'node:fs';
import { basename } from 'node:path';
import type { RedisOptions } from 'ioredis';
import { errorCode, GPUOwnerError } from '../../../errors.ts';
import { sanitize, shellWords, showValue, userName, warnOnce } from '../../../platform/index.ts';

/** The address of a queue on Redis. */
export interface Address {
  /** The URL without user and password, for people. */
  url: string;
  /** The name of the queue: one Redis may have many. PROJECT@USER, or PROJECT alone for a list that several users share. */
  name: string;
  isShared: boolean;
  connection: RedisOptions;
  /** How long a worker that can't reach Redis keeps its task, in ms. */
  patience: number;
  /** How much later its task may be given out again, in ms. The command must have ended by then. */
  margin: number;
}

const DEFAULT_PATIENCE_S = 60;
/** Longer than a command may live: SIGKILL comes 10 s after SIGTERM. */
const DEFAULT_MARGIN_S = 11;
const NAME = /^[A-Za-z0-9._-]{1,100}$/;
const PARAMETERS = ['project', 'share', 'ca', 'patience', 'margin'];
const PORT = 6379;

/**
 * `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://…` with TLS, `redis+unix:///PATH`; behind `?`: `project` (default: the name of
 * the project's directory); `share`, `yes` for a list of several users or projects; `ca`, a file with the certificate of the server's authority; `patience` and
 * `margin`, in seconds. The password is better in GPU_OWNER_QUEUE_PASSWORD, or in the file that GPU_OWNER_QUEUE_PASSWORD_FILE names.
 * @throws ERR_INVALID_ARGUMENT; the password is in no message
 */
export function parseAddress(text: string, project: string): Address {
  // The text behind '#' isn't shown: it may be the end of a password.
  if (text.includes('#')) throw wrong("has a '#', which would cut off the rest; write %23 for '#'");
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw wrong('is not a valid URL');
  }
  // If a password has a '/', its end is in the path, and would be shown.
  const behind = [...url.searchParams].flatMap(([key, value]) => (key === 'ca' ? [key] : [key, value]));
  if ([url.pathname, ...behind].some((part) => part.includes('@'))) {
    throw wrong("has an '@' after the host; in a password, write '/' as %2F, '?' as %3F and '@' as %40");
  }
  for (const key of url.searchParams.keys()) {
    if (!PARAMETERS.includes(key)) {
      throw wrong(`has an unknown parameter ${showValue(key)}; the known ones are ${PARAMETERS.join(', ')}`);
    }
  }
  const parameter = (key: string) => url.searchParams.get(key);
  const named = parameter('project') ?? (keyPart(basename(project)) || 'project');
  if (!NAME.test(named)) {
    throw wrong(
      `has the project ${showValue(named)}; a name has at most 100 letters, digits, '.', '_' and '-'`,
    );
  }
  const share = parameter('share') ?? 'no';
  if (!/^(?:yes|no)$/.test(share)) throw wrong(`has share=${showValue(share)}; use yes or no`);
  const isShared = share === 'yes';
  const path = decoded(url.pathname);
  const socket = url.protocol === 'redis+unix:';
  if (socket ? url.host !== '' || !path.startsWith('/') : url.hostname === '')
    throw wrong(socket ? 'has no path after three slashes' : 'has no host');
  const database = (socket ? '' : path.replace(/^\//, '')) || '0';
  if (!/^\d{1,4}$/.test(database)) {
    throw wrong(
      `has the database ${showValue(database)}, which is a number from 0: redis://HOST/0?project=NAME`,
    );
  }
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  const port = url.port === '' ? PORT : Number(url.port);
  const password = passwordOf(url);
  const ca = parameter('ca');
  const connection: RedisOptions = {
    ...(socket ? { path } : { host, port }),
    db: Number(database),
    ...(url.username === '' ? {} : { username: decoded(url.username) }),
    ...(password === null ? {} : { password }),
    ...(url.protocol === 'rediss:'
      ? { tls: ca === null ? {} : { ca: readConfigured(ca, 'the parameter ca of the queue') } }
      : {}),
  };
  const where = socket ? `redis+unix://${path}` : `${url.protocol}//${url.hostname}:${port}`;
  return {
    url: sanitize(
      `${where}${socket ? '' : `/${database}`}?project=${named}${isShared ? '&share=yes' : ''}`,
      500,
    ),
    name: isShared ? named : `${named}@${keyPart(userName(process.geteuid?.() ?? 0))}`,
    isShared,
    connection,
    patience: seconds('patience', parameter('patience'), DEFAULT_PATIENCE_S),
    margin: seconds('margin', parameter('margin'), DEFAULT_MARGIN_S),
  };
}

/** A name, made safe for a key of Redis. */
function keyPart(name: string): string {
  return name.replace(/[^A-Za-z0-9._-]+/g, '_').slice(0, 100);
}

function seconds(name: string, text: string | null, otherwise: number): number {
  if (text === null) return otherwise * 1000;
  const value = Number(text);
  if (text.trim() === '' || !(value > 0 && value <= 86_400))
    throw wrong(`has ${name}=${showValue(text)}; use a number of seconds`);
  return value * 1000;
}

function passwordOf(url: URL): string | null {
  if (url.password !== '') return decoded(url.password);
  const given = process.env.GPU_OWNER_QUEUE_PASSWORD;
  const file = process.env.GPU_OWNER_QUEUE_PASSWORD_FILE;
  if (given) return given;
  if (!file) return null;
  const read = readConfigured(file, 'GPU_OWNER_QUEUE_PASSWORD_FILE', refuseExposed)
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (read === '') throw wrong(`needs a password, and the file of GPU_OWNER_QUEUE_PASSWORD_FILE is empty`);
  return read;
}

/**
 * Refuses a password file that everybody may read, as ssh does with keys, if it is the user's own. Otherwise warns. Read-only mounts, which
 * containers have for secrets, are accepted. @throws ERR_INVALID_ARGUMENT
 */
function refuseExposed(descriptor: number, path: string): void {
  const { mode, uid } = fstatSync(descriptor);
  if ((mode & 0o006) === 0) return;
  try {
    accessSync(path, constants.W_OK);
  } catch (error) {
    if (errorCode(error) === 'EROFS') return;
  }
  const shown = sanitize(path, 300);
  const problem = `everybody may read or write ${shown}, which has the password of the queue`;
  if (uid === process.geteuid?.()) {
    throw new GPUOwnerError('ERR_INVALID_ARGUMENT', `${problem}: chmod o-rwx ${shellWords([shown])}`);
  }
  warnOnce(`${problem}: ask its owner to chmod o-rwx it`);
}

/** @param check gets the open file */
function readConfigured(
  path: string,
  what: string,
  check: (descriptor: number, path: string) => void = () => {},
): Buffer {
  let descriptor: number | null = null;
  try {
    descriptor = openSync(path, constants.O_RDONLY);
    check(descriptor, path);
    return readFileSync(descriptor);
  } catch (error) {
    if (error instanceof GPUOwnerError) throw error;
    const code = errorCode(error);
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${sanitize(path, 300)}, which ${what} names, can't be read (${code}). Name a file that can.`,
    );
  } finally {
    if (descriptor !== null) closeSync(descriptor);
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw wrong("has a '%' without two digits after it; write %25 for '%'");
  }
}

/** The error about a URL. The message doesn't show the URL, which may have a password. */
function wrong(what: string): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `the URL of the queue ${what}. Use redis://HOST[:PORT], rediss://HOST (with TLS), or redis+unix:///PATH.`,
  );
}
