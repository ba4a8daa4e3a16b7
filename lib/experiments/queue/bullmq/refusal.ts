// The reason with which a Redis refuses a connection. Redis says it first and closes at once, so a client that writes may never
// read it.
import { connect as connectTCP } from 'node:net';
import { connect as connectTLS } from 'node:tls';
import type { RedisOptions } from 'ioredis';
import { asError } from '../../../errors.ts';

const ANSWER_TIMEOUT_MS = 1_000;
const MAX_LENGTH = 4_096;

/** Errors of a connection that the server has closed. */
const CLOSED = /EPIPE|ECONNRESET|Connection is closed/;

/**
 * Connects once more, sends nothing, and reads what the server says.
 * @param error with which a client has failed
 * @returns the server's own error; null: it says none, or this isn't about a closed connection
 */
export async function refusalOf(
  { host, port, path, tls }: RedisOptions,
  error: unknown,
): Promise<Error | null> {
  const { message, code = '' } = asError(error);
  if (!CLOSED.test(`${code} ${message}`)) return null;
  const where = path === undefined ? { host: host as string, port: port as number } : { path };
  const said = await new Promise<string>((resolve) => {
    let text = '';
    const socket = tls ? connectTLS({ ...where, ...tls }) : connectTCP(where);
    const end = () => {
      socket.destroy();
      resolve(text);
    };
    socket.setTimeout(ANSWER_TIMEOUT_MS, end);
    socket.on('data', (bytes) => {
      text += bytes;
      if (/\n/.test(text) || text.length > MAX_LENGTH) end();
    });
    socket.on('error', end).on('close', end);
  });
  const refusal = /^-([^\r\n]+)/.exec(said)?.[1];
  return refusal === undefined ? null : new Error(refusal);
}
