// A terminal with a program in it: a real pseudo-terminal, and the screen of xterm.js, as many terminals of today have it.
import type { ChildProcess } from 'node:child_process';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import xterm from '@xterm/headless';
import { python, root } from './machine.ts';
import { until } from './time.ts';

export interface TerminalOptions {
  columns?: number;
  rows?: number;
  env: NodeJS.ProcessEnv;
}

/** A program on a terminal. */
export class TestTerminal {
  readonly child: ChildProcess;
  readonly ended: Promise<number | null>;
  readonly #screen: InstanceType<typeof xterm.Terminal>;
  /** Everything that was written to the terminal. */
  output = '';

  constructor(words: string[], { columns = 80, rows = 24, env }: TerminalOptions) {
    this.#screen = new xterm.Terminal({ cols: columns, rows, allowProposedApi: true });
    this.child = spawn(
      python,
      [join(root, 'test/fixtures/pty_window.py'), String(columns), String(rows), ...words],
      {
        // Python would choose another locale than C.
        env: { TERM: 'xterm-256color', LANG: 'C.UTF-8', PYTHONCOERCECLOCALE: '0', ...env },
        stdio: ['pipe', 'pipe', 'inherit', 'pipe'],
      },
    );
    this.child.stdin?.on('error', () => {});
    this.child.stdout?.on('data', (chunk: Buffer) => {
      this.output += chunk.toString('latin1');
      this.#screen.write(chunk);
    });
    this.ended = new Promise((resolve) => this.child.once('close', resolve));
  }

  type(keys: string): void {
    this.child.stdin?.write(keys);
  }

  resize(columns: number, rows: number): void {
    this.#screen.resize(columns, rows);
    (this.child.stdio[3] as Writable).write(`${columns} ${rows}\n`);
  }

  get lines(): string[] {
    const { active } = this.#screen.buffer;
    return Array.from(
      { length: this.#screen.rows },
      (_, row) =>
        active
          .getLine(active.baseY + row)
          ?.translateToString(true)
          .trimEnd() ?? '',
    );
  }

  get text(): string {
    return this.lines.join('\n');
  }

  /** The screen that programs take, and give back. */
  get isAlternate(): boolean {
    return this.#screen.buffer.active.type === 'alternate';
  }

  get isCursorHidden(): boolean {
    return this.output.lastIndexOf('\u001b[?25l') > this.output.lastIndexOf('\u001b[?25h');
  }

  get buffer() {
    return this.#screen.buffer.active;
  }

  /** Until the screen looks like this. */
  async shows(pattern: RegExp): Promise<void> {
    await until(
      () => pattern.test(this.text),
      () => `${pattern} on the screen:\n${this.text}`,
    );
  }

  /** Until something was written, perhaps to a screen that is gone. */
  async printed(pattern: RegExp): Promise<void> {
    await until(
      () => pattern.test(this.output),
      () => `${pattern} in ${JSON.stringify(this.output.slice(-2000))}`,
    );
  }

  close(): void {
    this.child.kill('SIGKILL');
  }
}
