import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import type { RedisOptions } from 'ioredis';
import type { GPUOwnerError } from '../../../errors.ts';
import { errorReason, sanitize, usageError, userName } from '../../../platform/index.ts';

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
const PORT = 6379;

const SECONDS = /^(?![0.]+$)\d{1,5}(?:\.\d+)?$/;
const PARAMETERS: Readonly<Record<string, RegExp>> = {
  project: /^[A-Za-z0-9._-]{1,100}$/,
  share: /^(?:yes|no)$/,
  ca: /./s,
  patience: SECONDS,
  margin: SECONDS,
};

/**
 * `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://…` with TLS, `redis+unix:///PATH`; behind `?`: `project` (default: the name of
 * the project's directory); `share`, `yes` for a list of several users or projects; `ca`, a file with the certificate of the server's authority; `patience` and
 * `margin`, in seconds. The password is better in GPU_OWNER_QUEUE_PASSWORD, or in the file that GPU_OWNER_QUEUE_PASSWORD_FILE names.
 * @throws ERR_INVALID_ARGUMENT; the password is in no message
 */
export function parseAddress(text: string, project: string): Address {
  if (!URL.canParse(text)) throw wrong('is not valid');
  const url = new URL(text);
  if (url.hash !== '') throw wrong("has a '#'");
  for (const [key, value] of url.searchParams) {
    const pattern = Object.hasOwn(PARAMETERS, key) ? PARAMETERS[key] : undefined;
    if (pattern === undefined)
      throw wrong(`has an unknown parameter; the known ones are ${Object.keys(PARAMETERS).join(', ')}`);
    if (!pattern.test(value)) throw wrong(`has a wrong value of ${key}`);
  }
  const parameter = (key: string) => url.searchParams.get(key);
  const name = parameter('project') ?? (keyPart(basename(project)) || 'project');
  const isShared = parameter('share') === 'yes';
  const path = decoded(url.pathname);
  const isSocket = url.protocol === 'redis+unix:';
  if (isSocket ? url.host !== '' || path === '' : url.hostname === '')
    throw wrong(isSocket ? 'has no path after three slashes' : 'has no host');
  const database = (isSocket ? '' : path.replace(/^\//, '')) || '0';
  if (!/^\d{1,4}$/.test(database)) throw wrong('has a database that is not a number');
  const port = url.port === '' ? PORT : Number(url.port);
  const password = url.password === '' ? configuredPassword() : decoded(url.password);
  const ca = parameter('ca');
  const tls = ca === null ? {} : { ca: readConfigured(ca, 'the parameter ca of the queue') };
  const where = isSocket ? `redis+unix://${path}` : `${url.protocol}//${url.hostname}:${port}/${database}`;
  const seconds = (key: string, otherwise: number) => 1000 * Number(parameter(key) ?? otherwise);
  return {
    url: sanitize(`${where}?project=${name}${isShared ? '&share=yes' : ''}`, 500),
    name: isShared ? name : `${name}@${keyPart(userName(process.geteuid?.() ?? 0))}`,
    isShared,
    connection: {
      ...(isSocket ? { path } : { host: url.hostname.replace(/^\[(.*)\]$/, '$1'), port }),
      db: Number(database),
      ...(url.username === '' ? {} : { username: decoded(url.username) }),
      ...(password === null ? {} : { password }),
      ...(url.protocol === 'rediss:' ? { tls } : {}),
    },
    patience: seconds('patience', DEFAULT_PATIENCE_S),
    margin: seconds('margin', DEFAULT_MARGIN_S),
  };
}

/** A name, made safe for a key of Redis. */
function keyPart(name: string): string {
  return name.replace(/[^A-Za-z0-9._-]+/g, '_').slice(0, 100);
}

function configuredPassword(): string | null {
  const { GPU_OWNER_QUEUE_PASSWORD: given, GPU_OWNER_QUEUE_PASSWORD_FILE: file } = process.env;
  if (given || !file) return given || null;
  return readConfigured(file, 'GPU_OWNER_QUEUE_PASSWORD_FILE').replace(/\r?\n$/, '');
}

function readConfigured(path: string, what: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const problem = `${sanitize(path, 300)}, which ${what} names, can't be read (${errorReason(error)})`;
    throw usageError(`${problem}. Name a file that can.`);
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw wrong("has a '%' without two digits after it"); // nothing else fails there
  }
}

/** The error about a URL. The message shows none of its words: each may be a part of a password that isn't encoded. */
function wrong(what: string): GPUOwnerError {
  return usageError(
    `the URL of the queue ${what}. Use redis://HOST[:PORT], rediss://HOST (with TLS), or redis+unix:///PATH. ` +
      "In a password, write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40 and '%' as %25.",
  );
}
