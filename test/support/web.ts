// `gpu-owner web` on a simulated machine, and requests to it.
import type { ChildProcess } from 'node:child_process';
import { type IncomingHttpHeaders, type OutgoingHttpHeaders, request } from 'node:http';
import type { StreamLine } from '../../lib/views/web/shapes.ts';
import { command, type Machine, output, type Starting } from './machine.ts';

export interface WebResponse {
  status: number;
  headers: IncomingHttpHeaders;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the API is what tests are about
  json: any;
}

/** A server that has been started, and what is needed to ask it. */
export class WebServer {
  readonly child: ChildProcess;
  /** As it was printed. */
  readonly url: string;
  readonly token: string;
  readonly port: number;

  private constructor(child: ChildProcess, url: string) {
    const { port, hash } = new URL(url);
    this.child = child;
    this.url = url;
    this.port = Number(port);
    this.token = hash.replace('#token=', '');
  }

  /** @param under a program that runs it, with its words */
  static async start(
    machine: Machine,
    args: string[] = [],
    starting: Starting = {},
    under: string[] = [],
  ): Promise<WebServer> {
    const child = machine.start([...under, process.execPath, command, 'web', ...args], starting);
    return new WebServer(child, await output(child, /^(http:\S+)$/m));
  }

  /** Asks with the token, unless the headers say otherwise. */
  get(path: string, headers: OutgoingHttpHeaders = {}, method = 'GET'): Promise<WebResponse> {
    const all: OutgoingHttpHeaders = { authorization: `Bearer ${this.token}`, ...headers };
    for (const name of Object.keys(all)) if (all[name] === undefined) delete all[name];
    return new Promise((resolve, reject) => {
      const asked = request(
        { host: '127.0.0.1', port: this.port, path, headers: all, method, agent: false },
        (response) => {
          let text = '';
          response.setEncoding('utf8').on('data', (more) => (text += more));
          response.on('error', reject);
          response.on('end', () => {
            const isJSON = response.headers['content-type'] === 'application/json' && text !== '';
            resolve({
              status: response.statusCode as number,
              headers: response.headers,
              text,
              json: isJSON ? JSON.parse(text) : null,
            });
          });
        },
      );
      asked.on('error', reject).end();
    });
  }

  /** Reads the stream until it is told to stop, or the server ends it. @param onLine returns false to stop */
  async watch(onLine: (line: StreamLine) => unknown): Promise<void> {
    const end = new AbortController();
    const response = await fetch(`http://127.0.0.1:${this.port}/api/v1/stream`, {
      headers: { authorization: `Bearer ${this.token}` },
      signal: end.signal,
    });
    if (!response.ok || response.body === null)
      throw new Error(`${response.status}: ${await response.text()}`);
    let text = '';
    for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
      text += bytes;
      const lines = text.split('\n');
      text = lines.pop() ?? '';
      for (const line of lines) {
        if (onLine(JSON.parse(line)) === false) return;
      }
    }
  }
}
