import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { GPUOwnerError } from '../../errors.ts';
import { schema } from '../../platform/index.ts';
import { parseValue, stringifyValue, type Value, type Values } from '../task/index.ts';

/** The first words of a manager to workers on another machine. */
export interface Begin {
  /** How long workers without an answer keep their tasks, in ms. */
  silence: number;
  /** How long their commands may take to end then, in ms. */
  grace: number;
  /** Variables for commands, beside those of the login. */
  environment: Readonly<Record<string, string>>;
}

const { amount, jsonOf, record, text } = schema;
const FIRST_LINE = jsonOf(
  record({
    begin: record({
      silence: amount(),
      grace: amount(),
      environment: (value, path) => {
        const variables = schema.object(value, path);
        return Object.fromEntries(Object.entries(variables).map(([key, each]) => [key, text(each, key)]));
      },
    }),
  }),
);

/** Receivers of what a manager says, and of the end of the connection. */
interface Listeners {
  drain: () => void;
  stop: () => void;
  /** Gets messages of other kinds. */
  hear: (message: Readonly<Record<string, Value>>) => void;
  lose: (why: string) => void;
}

/** The connection of workers to their manager on another machine: a line of JSON for each message, in which values keep their spelling. */
export class ManagerConnection {
  readonly begin: Begin;
  readonly #output: Writable;
  #listeners: Partial<Listeners> = {};
  /** How the workers are to end, which may have been said before anything listened. */
  #ending: 'drain' | 'stop' | null = null;
  #lost: string | null = null;

  private constructor(output: Writable, begin: Begin) {
    this.#output = output;
    this.begin = begin;
  }

  /** Waits for the manager's first line. @throws ERR_QUEUE if it doesn't come */
  static open(input: Readable, output: Writable): Promise<ManagerConnection> {
    return new Promise((resolve, reject) => {
      let connection: ManagerConnection | null = null;
      const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY });
      const lose = (why: string) => {
        if (connection !== null) connection.#lose(why);
        reject(new GPUOwnerError('ERR_QUEUE', 'no manager speaks on standard input: use exp run --on.'));
      };
      lines.on('line', (line) => {
        if (connection !== null) return connection.#receive(line);
        const first = schema.readAs(FIRST_LINE, line);
        if (first === null) return lines.close();
        connection = new ManagerConnection(output, first.begin);
        resolve(connection);
      });
      lines.on('close', () => lose('the connection to the manager ended'));
      output.on('error', () => lose('the connection to the manager broke'));
    });
  }

  listen(listeners: Partial<Listeners>): void {
    this.#listeners = { ...this.#listeners, ...listeners };
    if (this.#ending !== null) listeners[this.#ending]?.();
    if (this.#lost !== null) listeners.lose?.(this.#lost);
  }

  tell(message: Values): void {
    if (this.#lost === null) this.#output.write(`${stringifyValue(message)}\n`);
  }

  #receive(line: string): void {
    let message: Readonly<Record<string, Value>>;
    try {
      message = schema.object(parseValue(line), 'message') as Values;
    } catch {
      // The line is no JSON, or no object.
      this.#lose('a message of the manager made no sense');
      return;
    }
    const how = message.stop === true ? 'stop' : message.drain === true ? 'drain' : null;
    if (how === null) this.#listeners.hear?.(message);
    else {
      this.#ending = how;
      this.#listeners[how]?.();
    }
  }

  #lose(why: string): void {
    if (this.#lost !== null) return;
    this.#lost = why;
    this.#listeners.lose?.(why);
  }
}
