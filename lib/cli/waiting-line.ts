import type { WaitingState } from '../claims/standing.ts';
import { now } from '../clock.ts';
import { native } from '../native.ts';
import { formatDuration } from '../quantities.ts';
import { isTerminal, say, write } from './output.ts';

/** How a command that waits says so: one line that is kept current on a terminal, plain lines elsewhere. */
export interface WaitingReport {
  onWaiting: (state: WaitingState) => void;
  /** Whether it is worth finding out how things stand while nothing changes. */
  watched: boolean;
  /** To be called when the wait is over, however that came about. */
  end: () => void;
}

const REPAINT = 1_000;
const ERASE_LINE = '\r\u001b[K';

export function reportWaiting(): WaitingReport {
  const report = isTerminal(2) && process.env.TERM !== 'dumb' ? paint() : explainOnce();
  return {
    ...report,
    onWaiting: (state) => {
      rest();
      report.onWaiting(state);
    },
  };
}

/**
 * V8 tidies up some seconds after a program has nothing to do any more. A hundred that wait would take a few percent of a core
 * for that; they are small, and end soon after the wait.
 */
function rest(): void {
  process.getBuiltinModule('node:v8').setFlagsFromString('--no-memory-reducer --no-incremental-marking');
}

/** Says why it waits, and again only when something has changed that a person would call a change. */
function explainOnce(): WaitingReport {
  let said = '';
  return {
    watched: false,
    onWaiting: (state) => {
      const text = reasons(state)
        .map((reason) => `\n  ${reason}`)
        .join('');
      const headline = `waiting for ${what(state)}`;
      // How much a stranger uses changes all the time.
      const news = headline + text.replace(/\d+(\.\d+)? ([KMGT]iB|W|%|\u00b0C)/g, '');
      if (news !== said) say(`${headline}:${text}`);
      said = news;
    },
    end: () => {},
  };
}

function paint(): WaitingReport {
  const started = now();
  let state: WaitingState | null = null;
  let timer: NodeJS.Timeout | undefined;
  const draw = () => {
    if (state === null) return;
    const passed = formatDuration(now() - started);
    const line = `gpu-owner: waiting for ${what(state)} (${passed}): ${reasons(state).join('; ')}`;
    write(2, ERASE_LINE + shorten(line, (native().processColumns(2) || 80) - 1));
  };
  return {
    watched: true,
    onWaiting: (news) => {
      state = news;
      draw();
      timer ??= setInterval(draw, REPAINT).unref();
    },
    end: () => {
      clearInterval(timer);
      if (state !== null) write(2, ERASE_LINE);
      state = null;
    },
  };
}

/** "2 GPUs, 3rd in line" */
function what({ count, position }: WaitingState): string {
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${position === null ? '' : `, ${ordinal(position)} in line`}`;
}

/** Of those that might become free. */
function reasons({ gpus, wanted }: WaitingState): string[] {
  return gpus
    .filter(({ uuid }) => wanted.includes(uuid))
    .map(({ index, reason }) => `GPU ${index}: ${reason}`);
}

function ordinal(number: number): string {
  const teens = number % 100 >= 11 && number % 100 <= 13;
  return `${number}${(!teens && ['th', 'st', 'nd', 'rd'][number % 10]) || 'th'}`;
}

function shorten(text: string, width: number): string {
  const characters = Array.from(text);
  return characters.length <= width ? text : `${characters.slice(0, Math.max(0, width - 1)).join('')}…`;
}
