import type { WaitingState } from '../claims/index.ts';
import { describeHidden, label } from '../gpus/index.ts';
import type { WaitLine } from '../jobs/index.ts';
import { native } from '../native.ts';
import {
  fitColumns,
  formatDuration,
  isInForeground,
  isNewMessage,
  lastMessage,
  now,
  ordinal,
  parseDuration,
} from '../platform/index.ts';
import type { WAIT_BY_DEFAULT } from './claim-options.ts';
import { waitOption } from './claim-values.ts';
import type { InferValues } from './command-line.ts';
import { isTerminal, say, write } from './output.ts';

/** How a command that waits says so: one line that is kept current on a terminal, plain lines elsewhere. */
interface WaitProgress {
  onWaiting: (state: WaitingState) => void;
  /** Whether it is worth finding out how things stand while nothing changes. */
  watched: boolean;
  /** The line as it is shown; missing: no line is kept current. null: it can't be shown now. */
  line?: () => WaitLine | null;
  /** To be called when the wait is over, however that came about. */
  end: () => void;
}

/** The wait that the options ask for, with a report of it; null: don't wait. @param byDefault whether to wait if nothing is said */
export function waitLimits(values: InferValues<typeof WAIT_BY_DEFAULT>, byDefault: boolean) {
  const wait = waitOption(values, byDefault);
  if (wait === null) return null;
  return {
    maxWait: wait.maxWait === null ? null : parseDuration(wait.maxWait, '--wait'),
    ...(isTerminal(2) && process.env.TERM !== 'dumb' ? paint() : explainOnce()),
  };
}

const REPAINT_MS = 1_000;
const ERASE_LINE = '\r\u001b[K';
/** '59 min 59 s', '364 d 23 h' */
const MAX_DURATION_LENGTH = 12;
/** The subject of the message since when a line has been painted. */
const PAINTED_SINCE = 'painted-since';

/** Says why it waits, and again only when something has changed that a person would call a change. */
function explainOnce(): WaitProgress {
  return {
    watched: false,
    onWaiting: (state) => {
      const text = reasons(state)
        .map((reason) => `\n  ${reason}`)
        .join('');
      const headline = `waiting for ${what(state)}`;
      // How much a process without a claim uses changes all the time.
      const message = headline + text.replace(/\d+(\.\d+)? ([KMGT]iB|W|%|\u00b0C)/g, '');
      if (isNewMessage('wait', message)) say(`${headline}:${text}`);
    },
    end: () => {},
  };
}

function paint(): WaitProgress {
  // A process before this one may have begun.
  const before = lastMessage(PAINTED_SINCE);
  const started = before === undefined ? now() : Number(before);
  const plain = explainOnce();
  let state: WaitingState | null = null;
  let painted = before !== undefined;
  let timer: NodeJS.Timeout | undefined;
  const draw = () => {
    if (state === null) return;
    painted = isInForeground();
    if (!painted) return plain.onWaiting(state);
    isNewMessage(PAINTED_SINCE, String(started));
    const { beginning, rest } = words(state);
    const line = beginning + formatDuration(now() - started) + rest;
    write(2, ERASE_LINE + fitColumns(line, (native().processColumns(2) || 80) - 1));
  };
  const line = () => {
    if (state === null || !isInForeground()) return null;
    const columns = native().processColumns(2) || 80;
    const { beginning, rest } = words(state);
    const room = columns - 1 - beginning.length - MAX_DURATION_LENGTH;
    return room < 1 ? null : { before: beginning, after: fitColumns(rest, room), since: started, columns };
  };
  return {
    watched: true,
    onWaiting: (news) => {
      state = news;
      draw();
      timer ??= setInterval(draw, REPAINT_MS).unref();
    },
    line,
    end: () => {
      clearInterval(timer);
      if (painted && isInForeground()) write(2, ERASE_LINE);
      state = null;
    },
  };
}

/** The words before and after how long it has lasted. */
function words(state: WaitingState): { beginning: string; rest: string } {
  return { beginning: `gpu-owner: waiting for ${what(state)} (`, rest: `): ${reasons(state).join('; ')}` };
}

/** "2 GPUs, 3rd in the queue" */
function what({ count, position }: WaitingState): string {
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${position === null ? '' : `, ${ordinal(position)} in the queue`}`;
}

/** The reasons why GPUs that might become free aren't, and how many the environment leaves out. */
function reasons({ gpus, wanted }: WaitingState): string[] {
  const texts = gpus
    .filter(({ uuid }) => wanted.includes(uuid))
    .map((gpu) => `GPU ${label(gpu)}: ${gpu.reason}`);
  const hidden = describeHidden(gpus);
  return hidden === null ? texts : [...texts, hidden];
}
