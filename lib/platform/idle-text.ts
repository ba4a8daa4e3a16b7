// Idle time in words, for commands, `top` and the page in browsers: it needs nothing of Node.js.
import { formatDuration } from './quantities.ts';

/** Since when, and in how many snapshots in succession, a GPU is idle; without an energy counter the time isn't known. */
interface Idle {
  since: string | null;
  looks: number;
}

/** Shorter idle times aren't shown, in ms; fewer idle snapshots neither, where the GPU has no energy counter. */
const MIN_IDLE_MS = 60_000;
const MIN_IDLE_LOOKS = 3;

/**
 * The idle time of a GPU, in ms, or in how many snapshots in succession it was idle. null: too short to be shown.
 * @param since when its present holder came, ISO 8601
 */
export function idleTime(
  idle: Idle | null | undefined,
  since: string | null,
  now: number,
): { ms: number } | { looks: number } | null {
  if (idle == null) return null;
  if (idle.since === null) return idle.looks < MIN_IDLE_LOOKS ? null : { looks: idle.looks };
  const ms = now - Math.max(Date.parse(idle.since), Date.parse(since ?? '') || 0);
  return ms < MIN_IDLE_MS ? null : { ms };
}

/** "idle for 3 h"; null: too short to be shown. */
export function idleText(
  idle: Idle | null | undefined,
  since: string | null = null,
  now = Date.now(),
): string | null {
  const time = idleTime(idle, since, now);
  if (time === null) return null;
  return 'ms' in time ? `idle for ${formatDuration(time.ms)}` : `idle in the last ${time.looks} snapshots`;
}
