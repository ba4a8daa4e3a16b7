import type { Socket } from 'node:net';
import { errorMessage } from '../../errors.ts';
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
  /** Never rejects. */
  answer: (request: Buffer) => Promise<RequestAnswer>;
}

/** How long a client may leave its end open after it has got its answer. */
const LINGER_TIMEOUT_MS = 2_000;

/** A connection with one request: reads it, answers it, and closes. */
export class ClientConnection {
  readonly #socket: Socket;
  readonly #options: ConnectionOptions;
  readonly #framing = new JSONFraming();
  #pieces: Buffer[] = [];
  #size = 0;
  #complete = false;
  #timer: NodeJS.Timeout;

  constructor(socket: Socket, options: ConnectionOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#timer = setTimeout(
      () => this.refuse(`the request was not complete within ${options.timeoutMs / 1000} s`),
      options.timeoutMs,
    );
    socket.on('data', (piece) => this.#receive(piece as Buffer));
    socket.on('end', () => {
      if (this.#complete) return;
      if (this.#framing.begun) this.refuse('the request ended before its JSON object did');
      else socket.destroy(); // a port scan, or a probe of the port
    });
    // The client has gone; an error changes nothing.
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      clearTimeout(this.#timer);
      this.#complete = true;
      this.#forget();
    });
  }

  /** Answers with an error, whatever the request. */
  refuse(why: string): void {
    if (this.#complete) return;
    this.#complete = true;
    this.#forget();
    this.#write(errorAnswer(why));
  }

  #receive(piece: Buffer): void {
    // Data behind a request is ignored, but read: otherwise closing would take the answer from the client.
    if (this.#complete) return;
    if (this.#size + piece.length > this.#options.maxBytes) {
      this.refuse(`a request has at most ${this.#options.maxBytes} bytes`);
      return;
    }
    this.#pieces.push(piece);
    this.#size += piece.length;
    let end: number | null;
    try {
      end = this.#framing.find(piece);
    } catch (error) {
      this.refuse(errorMessage(error));
      return;
    }
    if (end !== null) void this.#respond(this.#size - piece.length + end);
  }

  async #respond(length: number): Promise<void> {
    this.#complete = true;
    clearTimeout(this.#timer);
    const request = Buffer.concat(this.#pieces, length);
    const { text, undelivered } = await this.#options.answer(request);
    this.#forget();
    // A task that can't be requeued now comes back like that of a worker that has died.
    if (this.#socket.destroyed) await undelivered?.().catch(() => {});
    else this.#write(text);
  }

  /** Writes in one piece: some clients call recv only once. */
  #write(text: string): void {
    const socket = this.#socket;
    if (socket.destroyed) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => socket.destroy(), this.#options.timeoutMs);
    socket.end(text, () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => socket.destroy(), LINGER_TIMEOUT_MS);
    });
  }

  #forget(): void {
    this.#pieces = [];
  }
}

export function errorAnswer(message: string): string {
  return JSON.stringify({ type: 'error', message: sanitize(message, 500) });
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPENING = new Set([0x7b, 0x5b]); // { [
const CLOSING = new Set([0x7d, 0x5d]); // } ]
const BLANKS = new Set([0x20, 0x09, 0x0a, 0x0d]);
/** Deeper objects are no results: they would only use up the parser's stack. */
const MAX_DEPTH = 100;

/** Finds the end of a JSON object that arrives in pieces: nothing else ends a request. The parser tells later whether it is JSON. */
export class JSONFraming {
  #depth = 0;
  #begun = false;
  #inString = false;
  #escaped = false;

  /** Whether anything of the object has arrived. */
  get begun(): boolean {
    return this.#begun;
  }

  /** @returns how many bytes of the piece belong to it; null: it goes on. @throws Error if this can't become an object */
  find(piece: Uint8Array): number | null {
    for (let i = 0; i < piece.length; i++) {
      const byte = piece[i] as number;
      // Bytes of non-ASCII characters are above 0x7f, so none of them is mistaken for these.
      if (this.#inString) this.#inside(byte);
      else if (byte === QUOTE) this.#inString = this.#expectBegun();
      else if (OPENING.has(byte)) this.#open(byte);
      else if (CLOSING.has(byte)) {
        this.#expectBegun();
        if (--this.#depth === 0) return i + 1;
      } else if (!BLANKS.has(byte)) this.#expectBegun();
    }
    return null;
  }

  #inside(byte: number): void {
    if (this.#escaped) this.#escaped = false;
    else if (byte === BACKSLASH) this.#escaped = true;
    else if (byte === QUOTE) this.#inString = false;
  }

  #open(byte: number): void {
    if (byte === 0x7b) this.#begun = true;
    this.#expectBegun();
    if (++this.#depth > MAX_DEPTH) throw new Error(`it is nested more than ${MAX_DEPTH} deep`);
  }

  #expectBegun(): true {
    if (!this.#begun) throw new Error('a request is one JSON object, {"type": "status"} for instance');
    return true;
  }
}
