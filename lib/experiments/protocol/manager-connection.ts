import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { GPUOwnerError } from '../../errors.ts';
import { parseValue, stringifyValue, type Value, type Values } from '../task/index.ts';

/** The first words of a manager to workers on another machine. */
export interface Begin {
  /** How long workers without an answer keep their tasks, in ms. */
  silence: number;
  /** How long their commands may take to end then, in ms. */
  grace: number;
  /** The task list, where all machines use one on a server; null: the manager is asked for tasks. */
  server: { url: string; password: string | null } | null;
  /** Variables for commands, beside those of the login. */
  environment: Readonly<Record<string, string>>;
}

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
        const message = parseValue(line) as Record<string, Value>;
        if (connection !== null) return connection.#receive(message);
        connection = new ManagerConnection(output, message.begin as unknown as Begin);
        resolve(connection);
      });
      lines.on('close', () => lose('the connection to the manager ended'));
      output.on('error', () => lose('the connection to the manager broke'));
    });
  }

  listen(listeners: Partial<Listeners>): void {
    this.#listeners = { ...this.#listeners, ...listeners };
    if (this.#lost !== null) listeners.lose?.(this.#lost);
  }

  tell(message: Values): void {
    if (this.#lost === null) this.#output.write(`${stringifyValue(message)}\n`);
  }

  #receive(message: Record<string, Value>): void {
    if (message.drain === true) this.#listeners.drain?.();
    else if (message.stop === true) this.#listeners.stop?.();
    else this.#listeners.hear?.(message);
  }

  #lose(why: string): void {
    if (this.#lost !== null) return;
    this.#lost = why;
    this.#listeners.lose?.(why);
  }
}
