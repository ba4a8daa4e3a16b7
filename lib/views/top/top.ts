// `top` on a terminal: what is shown, and what keys do. It changes nothing.
import { onWarning, sanitize, showsUnicode } from '../../platform/index.ts';
import type { LiveView } from '../machine-view.ts';
import { Pen, type ScreenStyle } from './pen.ts';
import { drawMachines } from './picture.ts';
import type { ViewOptions } from './rows.ts';
import { type Key, Terminal } from './terminal.ts';

const MESSAGE_MS = 8_000;
/** The clock goes on, and it is seen that a driver doesn't answer. */
const REDRAW_MS = 1_000;
/** A lower terminal has no room for it. */
const MIN_LEGEND_ROWS = 24;
const LEGEND = 'bold: yours  UTIL: now  MINUTE: the last one  IDLE: unused for  UNTIL: limit';
const HELP = [
  'Keys',
  '',
  '  up, down, PgUp, PgDn   select a row (Home, End: the first, the last)',
  '  /                      show only rows with some text; Esc: all again',
  '  q, Esc                 back; quit',
  '',
  'UTIL and MINUTE (the last one) are utilization; MIG instances have none, so',
  'theirs is memory. IDLE: how long the holder has left the GPU idle. %SM: share',
  "of the GPU's multiprocessors. Processes that compute on a GPU which their user",
  'has not leased are without a claim, and listed first.',
];

/** Shows machines until the user has seen enough. @param watch keeps the view current until it is stopped */
export async function runTop(view: LiveView, watch: (onLook: () => void) => Promise<void>): Promise<void> {
  await new TopScreen(view).run(watch);
}

class TopScreen {
  readonly #view: LiveView;
  readonly #choice: ViewOptions = { filter: '', selected: null };
  #terminal: Terminal | null = null;
  #rows: readonly string[] = [];
  #readsKeys = false;
  #isHelp = false;
  #typed: string | null = null;
  #message: { text: string; until: number } | null = null;
  #end: () => void = () => {};

  constructor(view: LiveView) {
    this.#view = view;
  }

  async run(watch: (onLook: () => void) => Promise<void>): Promise<void> {
    onWarning((text) => this.#say(text));
    const ended = new Promise<void>((resolve) => {
      this.#end = resolve;
    });
    const watching = watch(() => {
      this.#draw();
      this.#readKeys();
    });
    const terminal = Terminal.open({
      onKey: (key) => this.#press(key),
      onRedraw: () => this.#draw(),
    });
    this.#terminal = terminal;
    const timer = setInterval(() => {
      this.#draw();
      this.#readKeys();
    }, REDRAW_MS);
    try {
      await Promise.race([ended, watching]);
    } finally {
      clearInterval(timer);
      this.#view.stop();
      terminal.close();
    }
  }

  #readKeys(): void {
    if (this.#readsKeys) return;
    this.#readsKeys = true;
    this.#terminal?.readKeys();
  }

  #draw(): void {
    const terminal = this.#terminal;
    if (terminal === null) return;
    const style = styleOf(terminal.size);
    const now = Date.now();
    const footer = this.#footer(new Pen(style), now);
    if (this.#isHelp) {
      terminal.draw(inFrame(HELP, style, footer));
      return;
    }
    const below = style.rows !== null && style.rows >= MIN_LEGEND_ROWS ? [LEGEND, footer] : [footer];
    const { lines, rows } = drawMachines(this.#view.machines, this.#choice, style, now, below);
    this.#rows = rows;
    terminal.draw(lines);
  }

  #footer(pen: Pen, now: number): string {
    if (this.#typed !== null) return pen.fit(`filter: ${this.#typed}_  (Enter: done, Esc: show all)`);
    if (this.#message !== null && now < this.#message.until)
      return pen.ink(pen.fit(this.#message.text), 'bold');
    this.#message = null;
    return pen.fit('q quit  ? help  / filter  up, down select');
  }

  #say(text: string): void {
    this.#message = { text: sanitize(text, 300), until: Date.now() + MESSAGE_MS };
    this.#draw();
  }

  #press(key: Key): void {
    if (key.ctrl && key.name === 'c') {
      this.#terminal?.endBy('SIGINT');
      return;
    }
    if (key.ctrl && key.name === '\\') {
      this.#terminal?.endBy('SIGQUIT');
      return;
    }
    // The whole job of the shell, as the terminal itself would.
    if (key.ctrl && key.name === 'z') {
      this.#terminal?.suspend(0);
      return;
    }
    if (key.sequence === '\u001c') {
      this.#terminal?.endBy('SIGQUIT');
      return;
    }
    if (this.#typed !== null) this.#type(key, this.#typed);
    else this.#pressInTable(key);
    this.#draw();
  }

  #type({ name, sequence, ctrl, meta }: Key, typed: string): void {
    if (name === 'return' || name === 'enter') this.#typed = null;
    else if (name === 'escape') {
      this.#typed = null;
      this.#choice.filter = '';
    } else {
      const isText = !ctrl && !meta && sequence !== undefined && sanitize(sequence) === sequence.trim();
      const more = name === 'space' ? ' ' : isText ? sequence : '';
      this.#typed = name === 'backspace' ? typed.slice(0, -1) : `${typed}${more}`.slice(0, 40);
      this.#choice.filter = this.#typed;
    }
  }

  #pressInTable({ name, sequence }: Key): void {
    const page = 10;
    const steps: Record<string, number> = {
      up: -1,
      down: 1,
      pageup: -page,
      pagedown: page,
      home: -1e9,
      end: 1e9,
    };
    const step = steps[name ?? ''];
    if (step !== undefined) {
      this.#select(step);
      return;
    }
    if (name === 'escape') this.#back();
    else if (sequence === 'q') this.#isHelp ? this.#toggleHelp() : this.#end();
    else if (sequence === '?') this.#toggleHelp();
    else if (sequence === '/') this.#typed = this.#choice.filter;
  }

  #back(): void {
    if (this.#isHelp) this.#isHelp = false;
    else if (this.#choice.filter !== '') this.#choice.filter = '';
    else if (this.#choice.selected !== null) this.#choice.selected = null;
    else this.#end();
  }

  #toggleHelp(): void {
    this.#isHelp = !this.#isHelp;
  }

  #select(step: number): void {
    const at = this.#rows.indexOf(this.#choice.selected ?? '');
    // Without a selection, up leads to the last row, and down to the first.
    const from = at >= 0 ? at : step === -1 ? this.#rows.length : -1;
    const next = from + step;
    this.#choice.selected = this.#rows[Math.max(0, Math.min(this.#rows.length - 1, next))] ?? null;
  }
}

function inFrame(text: readonly string[], style: ScreenStyle, footer: string): string[] {
  const pen = new Pen(style);
  const room = Math.max(0, (style.rows ?? 0) - 1);
  const shown = text.slice(0, room).map((line, i) => (i === 0 ? pen.ink(line, 'bold') : pen.fit(line)));
  return [...shown, ...Array<string>(room - shown.length).fill(''), footer];
}

/** The abilities of the terminal, by the conventions of its environment. */
function styleOf(size: { columns: number; rows: number }): ScreenStyle {
  return { ...size, attributes: true, colour: !process.env.NO_COLOR, unicode: showsUnicode() };
}

/** Machines as plain lines, without an escape sequence. */
export function plainPicture(view: LiveView, columns: number): string {
  const choice = { filter: '', selected: null };
  const style = { columns, rows: null, attributes: false, colour: false, unicode: showsUnicode() };
  const { lines } = drawMachines(view.machines, choice, style, Date.now());
  return lines.map((line) => `${line.trimEnd()}\n`).join('');
}
