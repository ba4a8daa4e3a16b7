// Output of jobs for all clients over HTTP, as text: the last part, and what follows.
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { Host } from '../../config/index.ts';
import { TIMEOUTS } from '../../platform/index.ts';
import { followTail, TAIL_BYTES } from '../job-log.ts';

/** Each one of another machine costs a login there. */
const MAX_READERS = 20;
/** So much of another machine's output may wait in memory for a slow reader. */
const MAX_WAITING_BYTES = 4 * TAIL_BYTES;
/** A reader that has vanished is noticed, also if nothing is written. */
const KEEP_ALIVE_MS = 30_000;

/** Why a log isn't sent. */
interface LogRefusal {
  status: 404 | 503;
  code: string;
  message: string;
}

/** Logs of the jobs of the server's user. */
export class Logs {
  readonly #hosts: readonly Host[] | null;
  #readers = 0;

  /** @param hosts null: jobs are of this machine */
  constructor(hosts: readonly Host[] | null) {
    this.#hosts = hosts;
  }

  /** Sends a log to its end, or until the reader goes. @param address '17', or 'gpu1:17' @returns null: it was sent */
  async send(address: string, follow: boolean, response: ServerResponse): Promise<LogRefusal | null> {
    const [, name = '', id = ''] = /^(?:(.+):)?(\d{1,9})$/.exec(address) ?? [];
    const host = this.#hosts === null ? null : this.#hosts.find((each) => each.name === name);
    if (id === '' || host === undefined || (host === null && name !== '')) {
      const form = this.#hosts === null ? '17' : 'gpu1:17, of a host that this server shows';
      return { status: 404, code: 'not-found', message: `a job is named by its number, such as ${form}` };
    }
    if (this.#readers >= MAX_READERS)
      return { status: 503, code: 'too-many-viewers', message: `${MAX_READERS} logs are being read already` };
    this.#readers++;
    const sending = new Sending(response);
    const { signal } = sending;
    const write = (bytes: Uint8Array) => sending.write(bytes);
    try {
      const lose = () => response.destroy();
      const failure = await followTail(host, Number(id), write, lose, signal, follow);
      if (failure === null || response.headersSent) await sending.end(failure === null);
      else {
        const { code, message } = failure;
        return { status: code === 'ERR_INVALID_ARGUMENT' ? 404 : 503, code, message };
      }
    } finally {
      this.#readers--;
    }
    return null;
  }
}

/** A response that begins with the first bytes, and is dropped where they aren't read. */
class Sending {
  readonly #response: ServerResponse;
  readonly #gone = new AbortController();
  /** While the reader hasn't read all. */
  #reading: Promise<void> | null = null;

  constructor(response: ServerResponse) {
    this.#response = response;
    response.once('close', () => this.#gone.abort());
  }

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  /** Waits until it is read, or the reader is gone: another machine goes on writing meanwhile. */
  async write(bytes: Uint8Array): Promise<void> {
    const response = this.#response;
    if (response.destroyed) return;
    if (response.writableLength > MAX_WAITING_BYTES) {
      response.destroy();
      return;
    }
    this.#begin();
    if (bytes.length > 0) response.write(bytes);
    if (response.writableNeedDrain) this.#reading ??= this.#read();
    await this.#reading;
  }

  async #read(): Promise<void> {
    const timer = setTimeout(() => this.#response.destroy(), TIMEOUTS.stalledViewer);
    // This fails where the reader is gone.
    await once(this.#response, 'drain', { signal: this.signal }).catch(() => {});
    clearTimeout(timer);
    this.#reading = null;
  }

  #begin(): void {
    if (this.#response.headersSent) return;
    this.#response.socket?.setTimeout(0).setKeepAlive(true, KEEP_ALIVE_MS);
    const headers = { 'content-type': 'text/plain; charset=utf-8', 'x-accel-buffering': 'no' };
    this.#response.writeHead(200, headers).flushHeaders();
  }

  /** @param isWhole whether nothing is missing */
  async end(isWhole: boolean): Promise<void> {
    await this.#reading;
    if (!isWhole) this.#response.destroy();
    if (this.#response.destroyed) return;
    this.#begin();
    this.#response.end();
  }
}
