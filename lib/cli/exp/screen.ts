import { stripVTControlCharacters } from 'node:util';
import { isInForeground, sanitize, showsUnicode, timestamp, writeNow } from '../../platform/index.ts';
import type { Reporter, RunEnd, RunView } from '../../sweeps/index.ts';
import { isTerminal } from '../output.ts';
import { type DisplayStyle, render } from './render.ts';

/** The place where a long run says what happens. */
interface Screen {
  /** Prints a line that stays readable. `event`: one of many, which a live display shows as well. */
  line: (text: string, kind?: 'event' | 'message') => void;
  /** Shows the state of the run; `view` is called as often as the display is drawn. */
  show: (view: () => RunView) => void;
  /** Leaves the display as it was drawn last. */
  end: () => void;
}

const REPAINT_INTERVAL_MS = 500;
const HIDE_CURSOR = '\u001b[?25l';
const SHOW_CURSOR = '\u001b[?25h';
const CLEAR_LINE = '\u001b[K';
const CLEAR_BELOW = '\u001b[J';
/** Terminals that know these show a frame at once. */
const [BEGIN_FRAME, END_FRAME] = ['\u001b[?2026h', '\u001b[?2026l'];

/** A display that is kept current on a terminal that can have one; plain lines elsewhere, and where `CI` is set. */
export function openScreen(): Screen {
  const { CI, TERM } = process.env;
  const live = isTerminal(1) && TERM !== 'dumb' && (CI === undefined || CI === '' || CI === 'false');
  return live ? liveScreen() : plainScreen();
}

/** A line per event, with its time. The work goes on where nobody reads them any longer: a closed terminal, a full disk. */
export function plainScreen(): Screen {
  return {
    line: (text) => writeNow(1, `${timestamp()} ${clean(text)}\n`),
    show: () => {},
    end: () => {},
  };
}

/** Reports a run on a screen. @param summary makes the last lines */
export function screenReporter(screen: Screen, summary: (end: RunEnd) => string[]): Reporter {
  return {
    line: screen.line,
    show: screen.show,
    conclude: (end) => {
      screen.end();
      for (const line of summary(end)) screen.line(line);
    },
  };
}

/** Keeps the indentation. */
function clean(text: string): string {
  return (/^ */.exec(text)?.[0] ?? '') + sanitize(text, 2_000);
}

function liveScreen(): Screen {
  const terminal = process.stdout;
  // The terminal closed, for instance: the work goes on.
  terminal.on('error', () => {});
  let view: (() => RunView) | null = null;
  let drawn: string | null = null;
  /** Moves to the first line that was drawn. Terminals rewrap lines that are too long by now. */
  const back = () => {
    if (!drawn) return '';
    const lines = stripVTControlCharacters(drawn).split('\n');
    const width = terminal.columns || Number.POSITIVE_INFINITY;
    const rows = lines.reduce((sum, line) => sum + Math.max(1, Math.ceil(line.length / width)), 0);
    return `\u001b[${rows}A\r`;
  };
  const write = (text: string) => writeNow(1, BEGIN_FRAME + text + END_FRAME);
  const paint = () => {
    // In the background it would be painted over what is typed at the prompt.
    if (view === null || !isInForeground()) return;
    const start = drawn === null ? HIDE_CURSOR : back();
    drawn = render(view(), Date.now(), style(terminal));
    write(`${start}${drawn.replaceAll('\n', `${CLEAR_LINE}\n`)}${CLEAR_LINE}\n${CLEAR_BELOW}`);
  };
  const timer = setInterval(paint, REPAINT_INTERVAL_MS);
  terminal.on('resize', paint);
  process.on('SIGCONT', paint);
  return {
    line: (text, kind) => {
      if (kind === 'event') return;
      const isShown = drawn !== null;
      write(`${back()}${isShown ? CLEAR_BELOW : ''}${clean(text)}\n`);
      drawn = isShown ? '' : null;
      if (isShown) paint();
    },
    show: (how) => {
      view = how;
      paint();
    },
    end: () => {
      paint();
      clearInterval(timer);
      terminal.off('resize', paint);
      process.off('SIGCONT', paint);
      view = null;
      if (drawn !== null) writeNow(1, SHOW_CURSOR);
      drawn = null;
    },
  };
}

function style({ columns, rows }: NodeJS.WriteStream): DisplayStyle {
  return {
    columns: columns || 80,
    rows: rows || 24,
    colour: !process.env.NO_COLOR,
    unicode: showsUnicode(),
  };
}
