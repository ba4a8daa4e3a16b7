// Jobs whose GPUs do nothing: their user is warned, and then they are ended. See docs/decisions/059-idle-jobs.md.
import { type Claim, PLACEHOLDER, whyUnread } from '../claims/index.ts';
import { type Configuration, driverLibraries, loadConfiguration } from '../config/index.ts';
import { label } from '../gpus/index.ts';
import { nativeProgram } from '../native.ts';
import {
  formatBytes,
  formatDuration,
  isUserOf,
  parseDuration,
  showValue,
  TIMEOUTS,
  usageError,
  warn,
} from '../platform/index.ts';

/** When the user of a command whose GPUs do nothing is warned, and when the command is ended. */
export interface IdleLimit {
  warningMs: number;
  /** null: never */
  endMs: number | null;
  /** As its user wrote it; null: the machine's configuration says so. */
  text: string | null;
  minUtilization: number;
  /** Whether notifyCommand and notifyWebhook send the warning, too. */
  notify: boolean;
}

/** How long before the end of `--idle` its user is warned, in ms, or half of the time. */
const WARNING_MS = 5 * 60_000;

/**
 * Checks the option, and adds what the configuration says of this user's jobs: what comes first counts.
 * @param given '1h' @param isHere whether this machine's configuration counts @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION
 */
export function parseIdle(value: unknown, isHere = true): IdleLimit | null {
  const rule = isHere ? ruleOf(loadConfiguration()) : null;
  if (value === undefined) return rule;
  const endMs = Math.ceil(parseDuration(value, '--idle'));
  // The GPUs are read once a minute, and a mean lies between two readings.
  const least = 2 * TIMEOUTS.usage;
  if (endMs < least)
    throw usageError(`--idle: ${showValue(value)} is less than ${formatDuration(least)}; use 30m or 1h`);
  const warningMs = Math.min(
    endMs - Math.min(WARNING_MS, Math.floor(endMs / 2)),
    rule?.warningMs ?? Number.POSITIVE_INFINITY,
  );
  const minUtilization = rule?.minUtilization ?? 1;
  const own = { warningMs, endMs, text: String(value).trim(), minUtilization, notify: rule?.notify ?? false };
  if (rule?.endMs == null || rule.endMs > endMs) return own;
  return { ...rule, warningMs };
}

function ruleOf({ idle }: Configuration): IdleLimit | null {
  if (idle === undefined) return null;
  const { afterMs, endMs, notify, users, minUtilization } = idle;
  if (isUserOf(process.geteuid?.() ?? 0, users)) return null;
  return {
    warningMs: afterMs,
    endMs: endMs === null ? null : afterMs + endMs,
    text: null,
    minUtilization,
    notify,
  };
}

/** Options of a keeper for the program that reads the GPUs of a claim; none where the driver tells nothing of them, or of others as well. */
export function meterOptions(claim: Claim, place: (descriptor: number) => number): string[] {
  return whyUnread(claim) === null ? meterProgram(place) : [];
}

function meterProgram(place: (descriptor: number) => number): string[] {
  const program = /^\/proc\/self\/fd\/(\d+)$/.exec(nativeProgram(PLACEHOLDER))?.[1];
  if (program === undefined) return [];
  const { nvml } = driverLibraries();
  return ['--meter', `${place(Number(program))}:${TIMEOUTS.usage}`, ...(nvml ? ['--meter-nvml', nvml] : [])];
}

/**
 * Options of a keeper that ends its command for doing nothing.
 * @param command its name @param notifier a program that is started at the warning, and its arguments
 */
export function idleOptions(
  claim: Claim,
  limit: IdleLimit | null,
  command: string,
  notifier: readonly string[],
): string[] {
  if (limit === null) return [];
  const { gpus } = claim;
  const { warningMs, endMs, text, minUtilization } = limit;
  const unread = whyUnread(claim);
  if (unread !== null) {
    if (text !== null) warn(`--idle doesn't end the command: the use of its GPUs is unknown ${unread}.`);
    return [];
  }
  const [which, have, they] =
    gpus.length === 1
      ? [`GPU ${gpus.map(label).join()}`, 'has', 'it is']
      : [`GPUs ${gpus.map(label).join(', ')}`, 'have', 'they are'];
  const why = text === null ? "idle in the machine's configuration" : `--idle ${text}`;
  const did = (ms: number) => `${which} ${have} done nothing for ${formatDuration(ms)} (${why})`;
  const what = `${command} and all its processes get SIGTERM`;
  const warned =
    endMs === null
      ? `${did(warningMs)}. End ${command} if it doesn't need ${gpus.length === 1 ? 'it' : 'them'}: others may wait`
      : `${did(warningMs)}: ${what} in ${formatDuration(endMs - warningMs)}, unless ${they} used by then`;
  return [
    ...['--grace', String(TIMEOUTS.grace)],
    ...['--idle', `${warningMs}:${endMs ?? 0}:${minUtilization}`],
    ...['--idle-warned', warned],
    ...(endMs === null
      ? []
      : ['--idle-ended', `${did(endMs)}: ${what}, and after ${formatDuration(TIMEOUTS.grace)} SIGKILL`]),
    ...notifier.flatMap((word) => ['--idle-then', word]),
  ];
}

/** Options of a keeper that tells its command that it uses more than its share, and ends it where the machine's configuration says so. */
export function shareOptions(
  { leases, job }: Claim,
  command: string,
  place: (descriptor: number) => number,
): string[] {
  const sizes = leases.flatMap(({ shareBytes }) => shareBytes ?? []);
  if (sizes.length === 0 || job !== null) return [];
  const bytes = Math.min(...sizes);
  const has = `more than the ${formatBytes(bytes)} that it has claimed (--memory)`;
  const all = `${command} and all its processes get SIGTERM`;
  const ends = loadConfiguration().shareOveruse === 'end';
  const wait = formatDuration(TIMEOUTS.usage);
  return [
    ...meterProgram(place),
    ...['--share', String(bytes), '--grace', String(TIMEOUTS.grace)],
    '--share-warned',
    ends
      ? `${has}: ${all} in ${wait}, unless it uses less by then`
      : `${has}; other jobs may run out of memory`,
    ...(ends
      ? [
          '--share-ended',
          `${command} has used ${has} for ${wait}: ${all}, and after ${formatDuration(TIMEOUTS.grace)} SIGKILL`,
        ]
      : []),
  ];
}
