import { asError, GPUOwnerError } from '../../../errors.ts';
import { sanitize } from '../../../platform/index.ts';
import { QueueRemovedError, unusable } from '../queue.ts';

/** The error where the records were removed: otherwise, all tasks would seem to be done. */
export function removed(url: string): QueueRemovedError {
  return new QueueRemovedError(
    `the queue ${url} was removed while it was in use: FLUSHALL, DEL, or a Redis that keeps nothing on disk and was started again. ` +
      'Start again; results that are in the tables are found there.',
  );
}

/** Whether an operation may work in a moment: the server is away, starts, or doesn't answer. */
export function isPassing(error: unknown): boolean {
  const { message, code = '' } = asError(error);
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
    'requires a password',
    'Put it into GPU_OWNER_QUEUE_PASSWORD, or the name of a file that has it into GPU_OWNER_QUEUE_PASSWORD_FILE.',
  ],
  [
    /^WRONGPASS|invalid password|invalid username/i,
    'refuses the password',
    'Check GPU_OWNER_QUEUE_PASSWORD, and the user in the URL.',
  ],
  [
    /^NOPERM|ACL failure|can't access|unknown (?:redis )?command/i,
    'refuses a command, or has renamed it (rename-command)',
    'Its user needs ~gpu-owner* +@all -@dangerous +info (see `gpu-owner docs many-machines`).',
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
  const { message, code = '' } = asError(error);
  const text = `${code} ${message}`.trim();
  // The server was no replica when it was opened.
  if (/^READONLY/.test(message)) {
    return new QueueRemovedError(
      `the queue ${url} has become a replica, which takes no changes: another server was promoted. ` +
        'Name that server in --queue or GPU_OWNER_QUEUE, and start again.',
    );
  }
  const known = PROBLEMS.find(([pattern]) => pattern.test(message) || pattern.test(text));
  if (known !== undefined) return unusable(url, known[1], known[2], error);
  if (isPassing(error)) {
    return unusable(
      url,
      `can't be reached (${sanitize(text, 200)})`,
      'Start Redis, or check host, port or path in --queue or GPU_OWNER_QUEUE, and TLS: rediss:// or redis://. ' +
        "A Redis in protected mode, without 'requirepass', or with 'maxclients' connections closes others: its log says so.",
      error,
    );
  }
  // An error inside of a script, or of BullMQ when it reads a job; or one of Redis that says what is wrong.
  if (/^(?:ReplyError|SyntaxError|TypeError|RangeError)$/.test(asError(error).name)) {
    return unusable(
      url,
      `can't be used, or has a damaged record (${sanitize(text, 200)})`,
      'If nothing there is needed, name another project=NAME and start again; results that are in the tables are found there.',
      error,
    );
  }
  return new GPUOwnerError('ERR_INTERNAL', sanitize(`the queue ${url}: ${text}`, 1_000), { cause: error });
}
