import type { WaitingState } from '../claims/index.ts';
import { label } from '../gpus/index.ts';
import { native } from '../native.ts';
import {
  avoidIdleWork,
  fitColumns,
  formatDuration,
  isNews,
  now,
  parseDuration,
  readProcessStat,
} from '../platform/index.ts';
import { waitOption } from './claim-options.ts';
import type { Values } from './options.ts';
import { isTerminal, say, write } from './output.ts';

/** How a command that waits says so: one line that is kept current on a terminal, plain lines elsewhere. */
export interface WaitProgress {
  onWaiting: (state: WaitingState) => void;
  /** Whether it is worth finding out how things stand while nothing changes. */
  watched: boolean;
  /** To be called when the wait is over, however that came about. */
  end: () => void;
}

/** The wait that the options ask for, with a report of it; null: don't wait. @param byDefault whether to wait if nothing is said */
export function waitLimits(values: Values, byDefault: boolean) {
  const wait = waitOption(values, byDefault);
  if (wait === null) return null;
  return {
    maxWait: wait.maxWait === null ? null : parseDuration(wait.maxWait, '--wait'),
    ...showWaitProgress(),
  };
}

const REPAINT_MS = 1_000;
const ERASE_LINE = '\r\u001b[K';

function showWaitProgress(): WaitProgress {
  const report = isTerminal(2) && process.env.TERM !== 'dumb' ? paint() : explainOnce();
  return {
    ...report,
    onWaiting: (state) => {
      avoidIdleWork();
      report.onWaiting(state);
    },
  };
}

/** Says why it waits, and again only when something has changed that a person would call a change. */
function explainOnce(): WaitProgress {
  return {
    watched: false,
    onWaiting: (state) => {
      const text = reasons(state)
        .map((reason) => `\n  ${reason}`)
        .join('');
      const headline = `waiting for ${what(state)}`;
      // How much a stranger uses changes all the time.
      const news = headline + text.replace(/\d+(\.\d+)? ([KMGT]iB|W|%|\u00b0C)/g, '');
      if (isNews('wait', news)) say(`${headline}:${text}`);
    },
    end: () => {},
  };
}

function paint(): WaitProgress {
  const started = now();
  const plain = explainOnce();
  let state: WaitingState | null = null;
  let painted = false;
  let timer: NodeJS.Timeout | undefined;
  const draw = () => {
    if (state === null) return;
    painted = isInForeground();
    if (!painted) return plain.onWaiting(state);
    const passed = formatDuration(now() - started);
    const line = `gpu-owner: waiting for ${what(state)} (${passed}): ${reasons(state).join('; ')}`;
    write(2, ERASE_LINE + fitColumns(line, (native().processColumns(2) || 80) - 1));
  };
  return {
    watched: true,
    onWaiting: (news) => {
      state = news;
      draw();
      timer ??= setInterval(draw, REPAINT_MS).unref();
    },
    end: () => {
      clearInterval(timer);
      if (painted && isInForeground()) write(2, ERASE_LINE);
      state = null;
    },
  };
}

/** In the background, a line that is kept current would be painted over what its user types at the prompt. */
export function isInForeground(): boolean {
  const stat = readProcessStat('self');
  return stat === null || stat.foregroundGroup <= 0 || stat.group === stat.foregroundGroup;
}

/** "2 GPUs, 3rd in the queue" */
function what({ count, position }: WaitingState): string {
  return `${count === 1 ? 'a GPU' : `${count} GPUs`}${position === null ? '' : `, ${ordinal(position)} in the queue`}`;
}

/** The reasons why GPUs that might become free aren't. */
function reasons({ gpus, wanted }: WaitingState): string[] {
  return gpus.filter(({ uuid }) => wanted.includes(uuid)).map((gpu) => `GPU ${label(gpu)}: ${gpu.reason}`);
}

function ordinal(number: number): string {
  const teens = number % 100 >= 11 && number % 100 <= 13;
  return `${number}${(!teens && ['th', 'st', 'nd', 'rd'][number % 10]) || 'th'}`;
}
