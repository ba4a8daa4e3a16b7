import { fitColumns, formatDuration, sanitize } from '../../platform/index.ts';
import {
  describeTrial,
  formatProgress,
  formatRate,
  type Progress,
  type RunView,
} from '../../sweeps/index.ts';

export interface DisplayStyle {
  columns: number;
  rows: number;
  colour: boolean;
  /** Can the terminal show more than ASCII? */
  unicode: boolean;
}

const MIN_COLUMNS = 20;
const MAX_BAR = 40;
const MAX_FAILURES = 3;

/** The lines of the display: none wider than the terminal, and together not higher. @param now ms since the epoch */
export function render(view: RunView, now: number, style: DisplayStyle): string {
  const columns = Math.max(style.columns, MIN_COLUMNS) - 1;
  const clip = (text: string) => fitColumns(text, columns);
  const paint = (text: string, code: string) => (style.colour ? `\u001b[${code}m${text}\u001b[0m` : text);
  const head = [
    ...progressLines(view, now, columns, style),
    clip(counts(view.progress)),
    ...bestLines(view.best).map(clip),
  ];
  const notes = view.notes.map((note) => paint(clip(sanitize(note, 500)), '33'));
  const failures = view.failures
    .slice(0, MAX_FAILURES)
    .map(({ name, error }) => paint(clip(`  ${sanitize(name, 80)}: ${sanitize(error, 300)}`), '31'));
  const below = failures.length === 0 ? [] : ['last failures', ...failures];
  return [...head, ...notes, ...below].slice(0, Math.max(1, style.rows - 1)).join('\n');
}

/** One line where there is room for a bar beside the words, otherwise what matters most. */
function progressLines(
  { progress, eta }: RunView,
  now: number,
  columns: number,
  style: DisplayStyle,
): string[] {
  const { completed, ended, total } = progress;
  const rate = eta.rate(now);
  const left = total === ended ? null : eta.left(now, total - ended);
  const words = [
    formatProgress(completed, total),
    ...(rate === null ? [] : [formatRate(rate)]),
    ...(left === null ? [] : [`${seconds(left)} left`]),
  ];
  const text = words.join('  ');
  const room = Math.min(MAX_BAR, columns - text.length - 2);
  if (room < 10) return [fitColumns(text, columns)];
  return [`${bar(total === 0 ? 1 : completed / total, room, style)}  ${text}`];
}

function bar(share: number, width: number, { colour, unicode }: DisplayStyle): string {
  const filled = Math.floor(share * width);
  const [full, empty] = unicode ? ['\u2588', '\u2591'] : ['#', '-'];
  const [done, rest] = [(full as string).repeat(filled), (empty as string).repeat(width - filled)];
  return colour ? `\u001b[32m${done}\u001b[0m\u001b[2m${rest}\u001b[0m` : done + rest;
}

/** "43 completed, 2 failed, 4 running, 191 waiting" */
export function counts({ counts }: Pick<Progress, 'counts'>): string {
  const { completed, failed, cancelled, active, pending } = counts;
  const parts = [
    `${completed} completed`,
    ...(failed > 0 ? [`${failed} failed`] : []),
    ...(cancelled > 0 ? [`${cancelled} cancelled`] : []),
    `${active} running`,
    `${pending} waiting`,
  ];
  return parts.join(', ');
}

/** "best loss=0.1 grid_3 lr=0.01" */
export function bestLines(best: RunView['best']): string[] {
  if (best === null) return [];
  const stopped = best.stopped === 0 ? [] : [`${best.stopped} stopped early`];
  return [...best.trials.map((trial) => `best ${describeTrial(best.metric, trial)}`), ...stopped];
}

/** Less than a second is none: what changes all the time can't be read. */
export function seconds(milliseconds: number): string {
  return milliseconds < 1_000 ? '0 s' : formatDuration(milliseconds);
}
