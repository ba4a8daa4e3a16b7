import { GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../platform/index.ts';
import { QueueRemovedError } from '../queue.ts';

export function unusable(url: string, problem: string, remedy: string, cause?: unknown): GPUOwnerError {
  return new GPUOwnerError('ERR_QUEUE', sanitize(`the queue ${url} ${problem}. ${remedy}`, 1_000), { cause });
}

/** Whether an operation may work in a moment: the server is away, starts, or doesn't answer. */
export function isPassing(error: unknown): boolean {
  const { message = '', code = '' } = error as NodeJS.ErrnoException;
  return (
    /^(?:E[A-Z]+|NR_CLOSED)$/.test(code) ||
    /^(?:LOADING|MASTERDOWN|TRYAGAIN|BUSY|READONLY)\b|Connection is closed|Command timed out|isn't writeable|max retries|ECONN|EPIPE|ETIMEDOUT/i.test(
      message,
    )
  );
}

/** Problems and remedies by Redis's message. */
const PROBLEMS: readonly [RegExp, problem: string, remedy: string][] = [
  [
    /^NOAUTH|HELLO must be called/,
    'asks for a password',
    'Put it into GPU_OWNER_QUEUE_PASSWORD, or the name of a file that has it into GPU_OWNER_QUEUE_PASSWORD_FILE.',
  ],
  [
    /^WRONGPASS|invalid password|invalid username/i,
    'refuses the password',
    'See GPU_OWNER_QUEUE_PASSWORD, and the user in the URL.',
  ],
  [
    /^NOPERM|ACL failure|can't access/,
    'refuses a command to this user',
    'It needs ~gpu-owner* +@all -@dangerous +info (see docs/many-machines.md).',
  ],
  [
    /unknown (?:redis )?command/i,
    'lacks a command, or has renamed it (rename-command)',
    'Use one on which EVAL, EVALSHA, INFO, TIME and those of data have their names.',
  ],
  [/^OOM/, "has no memory left ('maxmemory')", 'Raise maxmemory; nothing that was acknowledged is lost.'],
  [/^MISCONF/, "can't write its file", 'Make room on its disk; see the log of Redis.'],
  [/^(?:MOVED|CLUSTERDOWN|CROSSSLOT)/, 'is a cluster', 'Use a Redis of its own: a queue is on one server.'],
  [/^READONLY/, 'is a replica, which takes no changes', 'Name the server that it copies.'],
  [/ENOTFOUND|EAI_AGAIN/, "can't be reached: no such host", 'See its name in --queue or GPU_OWNER_QUEUE.'],
  [
    /ECONNREFUSED/,
    "can't be reached: no server listens there",
    'Start Redis, or see host and port in --queue or GPU_OWNER_QUEUE.',
  ],
  [
    /ENOENT/,
    "can't be reached: there is no such socket",
    'Start Redis, or see the path in --queue or GPU_OWNER_QUEUE.',
  ],
  [/EACCES/, "can't be reached: permission denied", 'Get into the group of the socket (unixsocketperm).'],
  [
    /DB index is out of range/,
    'is a database that this Redis does not have',
    "Name one from 0 to 15, or raise 'databases' in redis.conf.",
  ],
  [
    /^WRONGTYPE/,
    'has keys of another program',
    'Name another project=NAME, or another database; or remove these keys with the program that wrote them.',
  ],
  [
    /certificate|self.signed|ERR_TLS|ssl|TLS/i,
    "can't be trusted",
    'Add ?ca=FILE with the certificate of its authority, or name the host as the certificate has it.',
  ],
];

/** Turns an error into one for people, with the remedy. */
export function explain(error: unknown, url: string): GPUOwnerError {
  if (error instanceof GPUOwnerError) return error;
  const { message = '', code = '' } = error as NodeJS.ErrnoException;
  const text = `${code} ${message}`.trim();
  if (/^(?:ERR )?GONE\b/.test(message)) {
    return new QueueRemovedError(
      sanitize(
        `the queue ${url} was removed while it was in use: FLUSHALL, DEL, or a Redis that keeps nothing on disk and was started again. ` +
          'Start again; results that are in the tables are found there.',
        1_000,
      ),
    );
  }
  const known = PROBLEMS.find(([pattern]) => pattern.test(message) || pattern.test(text));
  if (known !== undefined) return unusable(url, known[1], known[2], error);
  if (isPassing(error)) {
    return unusable(
      url,
      `doesn't answer (${sanitize(text, 200)})`,
      'See whether Redis runs and can be reached from here, and whether it speaks TLS (rediss://) or not (redis://).',
      error,
    );
  }
  // An error inside of a script: a damaged record.
  if ((error as Error).name === 'ReplyError') {
    return unusable(
      url,
      `has a record that is damaged (${sanitize(text, 200)})`,
      'If nothing there is needed, name another project=NAME and start again; results that are in the tables are found there.',
      error,
    );
  }
  return new GPUOwnerError('ERR_INTERNAL', sanitize(`the queue ${url}: ${text}`, 1_000), { cause: error });
}
