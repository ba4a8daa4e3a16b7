import { checkOptions } from '../claims/index.ts';
import { EXIT_CODES } from '../errors.ts';
import { chooseHosts } from '../fleet/index.ts';
import { MAX_TIMER_MS, parseDuration, usageError } from '../platform/index.ts';
import { FleetView, loadTop, MachineView } from '../views/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE } from './command-line.ts';
import { HOSTS, isForHosts, timeoutOf, topWords } from './hosts.ts';
import { isTerminal, pageWidth, print, write } from './output.ts';

const DEFAULT_INTERVAL = '1s';
const MIN_INTERVAL_MS = 100;
const PROBLEM_INTERVAL_MS = 2_000;
/** The width of lines where it isn't known. */
const PLAIN_COLUMNS = 132;

const GROUPS = [
  {
    options: {
      interval: {
        value: 'DURATION',
        help: `refresh every DURATION (default ${DEFAULT_INTERVAL}); plain lines are then printed each time`,
        candidates: ['1s', '2s', '5s'],
      },
      json: {
        help: 'print an array with an object { time, gpus, queue, waiting, intruders, processes, jobs, problem } instead; with --interval, a line every DURATION',
      },
      ...HOSTS,
      ...SIMULATE,
    },
  },
] as const satisfies readonly OptionGroup[];

async function top(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { request } = checkOptions({});
  const interval = Math.min(
    Math.max(MIN_INTERVAL_MS, parseDuration(values.interval ?? DEFAULT_INTERVAL, '--interval')),
    MAX_TIMER_MS,
  );
  if (isForHosts(values)) return topOfHosts(parsed, interval);
  const view = new MachineView(request, true);
  if (values.json) return printJSON(view, values.interval === undefined ? null : interval);
  const { plainPicture, runTop } = await loadTop();
  if (isScreen()) return runTop(view, (onLook) => view.watch(interval, onLook));
  const show = (end: string) => write(1, plainPicture(view, pageWidth(PLAIN_COLUMNS)) + end);
  if (values.interval !== undefined) return view.watch(interval, () => show('\n'));
  await view.look();
  show('');
}

function isScreen(): boolean {
  return isTerminal(1) && process.env.TERM !== 'dumb';
}

async function topOfHosts({ values }: Parsed<typeof GROUPS>, interval: number): Promise<void> {
  if (values.json) throw usageError('--json is for this machine only');
  const timeout = timeoutOf(values) + interval;
  const view = new FleetView(chooseHosts(values.hosts ?? ''));
  const watch = (onNews: () => void) => view.watch(topWords(values, interval), timeout, onNews);
  const { plainPicture, runTop } = await loadTop();
  if (isScreen()) return runTop(view, watch);
  const show = (end: string) => write(1, plainPicture(view, pageWidth(PLAIN_COLUMNS)) + end);
  if (values.interval !== undefined) {
    const timer = setInterval(() => show('\n'), interval);
    return watch(() => {}).finally(() => clearInterval(timer));
  }
  await watch(() => {
    if (view.machines.every(({ snapshot, problem }) => snapshot !== null || problem !== null)) view.stop();
  });
  show('');
  if (view.machines.every(({ snapshot }) => snapshot === null)) process.exitCode = EXIT_CODES.ERR_NO_DRIVER;
}

/** Prints a snapshot per line. @param interval null: one */
async function printJSON(view: MachineView, interval: number | null): Promise<void> {
  const show = () => {
    if (view.snapshot === null) return;
    print(JSON.stringify([{ ...view.snapshot, jobs: view.jobs, problem: view.problem }]));
  };
  if (interval === null) return view.look().then(show);
  // Readers must not take a driver that hangs for a connection that does.
  const timer = setInterval(() => {
    if (view.problem !== null) show();
  }, PROBLEM_INTERVAL_MS);
  await view.watch(interval, show).finally(() => clearInterval(timer));
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Shows every GPU with its last minute, its holder and job, who waits, processes without a claim, and what each user has, until q is pressed; ? lists the keys. Without a terminal, or if TERM is dumb, it prints plain lines once. It takes nothing and disturbs no claim.`,
  groups: GROUPS,
  run: top,
};
