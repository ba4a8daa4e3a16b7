import type { Socket } from 'node:net';
import { sanitize } from '../../platform/index.ts';

/** The answer to a request. */
export interface RequestAnswer {
  text: string;
  /** Called if the client closed the connection before the answer was sent. */
  undelivered?: () => Promise<void>;
}

export interface ConnectionOptions {
  /** The size limit of a request. */
  maxBytes: number;
  /** How long a request may take to arrive, in ms, and again how long the client may take to receive the answer. */
  timeoutMs: number;
  /** Never rejects. null: the request isn't complete yet. */
  answer: (request: Buffer) => Promise<RequestAnswer> | null;
}

const OPENING = 0x7b; // {
const CLOSING = 0x7d; // }
const BLANKS: readonly (number | undefined)[] = [0x20, 0x09, 0x0a, 0x0d];

/** Reads one request from a connection, a JSON object, answers it, and closes. */
export function serveRequest(socket: Socket, { maxBytes, timeoutMs, answer }: ConnectionOptions): void {
  let request = Buffer.alloc(0);
  let isComplete = false;
  const finish = (text: string) => {
    isComplete = true;
    clearTimeout(timer);
    timer = setTimeout(() => socket.destroy(), timeoutMs);
    // In one piece: some clients call recv only once.
    if (!socket.destroyed) socket.end(text);
  };
  const refuse = (why: string) => finish(errorAnswer(why));
  const respond = async (answering: Promise<RequestAnswer>) => {
    isComplete = true;
    clearTimeout(timer);
    const { text, undelivered } = await answering;
    // A task that can't be requeued now comes back like that of a worker that has died.
    if (socket.destroyed) await undelivered?.().catch(() => {});
    else finish(text);
  };
  let timer = setTimeout(
    () => refuse(`the request was no complete JSON object within ${timeoutMs / 1000} s`),
    timeoutMs,
  );
  socket.on('data', (piece: Buffer) => {
    // What follows a request is ignored, but read: otherwise closing would take the answer from the client.
    if (isComplete) return;
    request = Buffer.concat([request, piece]);
    if (request.length > maxBytes) return refuse(`a request has at most ${maxBytes} bytes`);
    const first = request.find((byte) => !BLANKS.includes(byte));
    if (first === undefined) return;
    if (first !== OPENING) return refuse('a request is one JSON object, {"type": "status"} for instance');
    if (piece[piece.findLastIndex((byte) => !BLANKS.includes(byte))] !== CLOSING) return;
    const answering = answer(request);
    if (answering !== null) void respond(answering);
  });
  socket.on('end', () => {
    if (isComplete) return;
    if (request.length > 0) refuse('the request ended before its JSON object did');
    else socket.destroy(); // a port scan, or a probe of the port
  });
  socket.on('close', () => clearTimeout(timer));
}

export function errorAnswer(message: string): string {
  return JSON.stringify({ type: 'error', message: sanitize(message, 500) });
}
