// The terminal while `top` has it: a screen of its own, keys, and the way back, however this process ends.
import {
  cursorHide,
  cursorShow,
  cursorTo,
  enterAlternativeScreen,
  eraseLine,
  eraseScreen,
  exitAlternativeScreen,
} from 'ansi-escapes';
import { ifPossible } from '../../errors.ts';
import { isInForeground, writeNow } from '../../platform/index.ts';

/** A key as Node.js' readline tells it. */
export interface Key {
  /** Missing: a character that has no name. */
  name?: string;
  sequence: string;
  ctrl: boolean;
  meta: boolean;
}

interface Handlers {
  onKey: (key: Key) => void;
  /** Something else must be drawn: the size has changed, or the screen is back. */
  onRedraw: () => void;
}

const ENDING = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const;
const BACK = exitAlternativeScreen + cursorShow;
const DEFAULT_SIZE = { columns: 80, rows: 24 };

export class Terminal {
  readonly #handlers: Handlers;
  readonly #input = process.stdin;
  readonly #output = process.stdout;
  #isShown = false;
  /** Whether keys are read. */
  #isRaw = false;
  #drawn: string[] = [];
  readonly #listeners: [NodeJS.Signals, () => void][] = [];

  private constructor(handlers: Handlers) {
    this.#handlers = handlers;
  }

  /** Takes the screen. */
  static open(handlers: Handlers): Terminal {
    const terminal = new Terminal(handlers);
    terminal.#listen();
    terminal.#enter();
    return terminal;
  }

  /** Reads keys from now on. That takes some milliseconds, so the first picture comes before. */
  readKeys(): void {
    if (!this.#input.isTTY) return;
    const { emitKeypressEvents } = process.getBuiltinModule('node:readline');
    emitKeypressEvents(this.#input);
    this.#input.on('keypress', (_, key: Key) => this.#handlers.onKey(key));
    const hangUp = () => this.endBy('SIGHUP');
    this.#input.on('end', hangUp).on('error', hangUp);
    this.#input.resume();
    this.#isRaw = true;
    if (!this.#isShown) return;
    this.#input.setRawMode(true);
    // The terminal has shown what was typed until now.
    this.#drawn = [];
    this.#handlers.onRedraw();
  }

  get size(): { columns: number; rows: number } {
    const { columns, rows } = this.#output;
    return { columns: columns || DEFAULT_SIZE.columns, rows: rows || DEFAULT_SIZE.rows };
  }

  /** Writes the lines that have changed. */
  draw(lines: readonly string[]): void {
    // In the background it would be painted over what is typed at the prompt.
    if (!this.#isShown || !isInForeground()) return;
    const { rows } = this.size;
    let text = '';
    for (let row = 0; row < rows; row++) {
      const line = lines[row] ?? '';
      if (line === this.#drawn[row]) continue;
      text += cursorTo(0, row) + eraseLine + line;
      this.#drawn[row] = line;
    }
    this.#drawn.length = rows;
    if (text !== '' && !this.#write(text)) this.endBy('SIGHUP');
  }

  /** Gives the terminal back, and stops as Ctrl-Z does. Goes on when the shell says so. */
  suspend(target: number): void {
    this.#leave();
    const [listener] = this.#listeners.filter(([name]) => name === 'SIGTSTP').map(([, each]) => each);
    if (listener !== undefined) process.off('SIGTSTP', listener);
    process.kill(target, 'SIGTSTP');
    // Where no shell could continue it, the kernel ignores this signal: then it goes on at once.
    setImmediate(() => {
      if (listener !== undefined) process.on('SIGTSTP', listener);
      this.#enter();
      this.#handlers.onRedraw();
    });
  }

  /** Gives the terminal back, and ends by this signal, as its sender expects. */
  endBy(signal: NodeJS.Signals): void {
    this.close();
    process.kill(process.pid, signal);
  }

  close(): void {
    this.#leave();
    for (const [signal, listener] of this.#listeners.splice(0)) process.off(signal, listener);
    this.#input.pause();
  }

  #listen(): void {
    const on = (signal: NodeJS.Signals, listener: () => void) => {
      process.on(signal, listener);
      this.#listeners.push([signal, listener]);
    };
    for (const signal of ENDING) on(signal, () => this.endBy(signal));
    on('SIGTSTP', () => this.suspend(process.pid));
    // After SIGSTOP, a shell may have changed the terminal meanwhile.
    on('SIGCONT', () => {
      this.#leave();
      this.#enter();
      this.#handlers.onRedraw();
    });
    process.on('exit', () => this.#leave());
    process.on('uncaughtExceptionMonitor', () => this.#leave());
    this.#output.on('resize', () => {
      this.#forget();
      this.#handlers.onRedraw();
    });
    this.#output.on('error', () => {});
  }

  #enter(): void {
    if (this.#isShown) return;
    this.#isShown = true;
    if (this.#isRaw) this.#input.setRawMode(true);
    this.#write(enterAlternativeScreen + cursorHide);
    this.#forget();
  }

  #leave(): void {
    if (!this.#isShown) return;
    this.#isShown = false;
    this.#write(BACK);
    // It fails where the terminal is gone.
    if (this.#isRaw) ifPossible(() => this.#input.setRawMode(false), null);
  }

  /** Writes at once, past Node's streams: what is written last shall arrive before the process ends. @returns false: the terminal is gone */
  #write(text: string): boolean {
    return writeNow(1, text) === null;
  }

  /** Forgets the picture, where it isn't known what is on the screen. */
  #forget(): void {
    if (this.#isShown) this.#write(eraseScreen);
    this.#drawn = [];
  }
}
