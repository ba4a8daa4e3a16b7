// The course of cases: processes that compute where they may not get a warning, SIGTERM after the grace, SIGKILL. Pure functions.

/** A process in a case. Times are in ms since boot. */
export interface CaseProcess {
  seenAt: number;
  /** When it got SIGTERM and SIGKILL; null: it hasn't. */
  terminatedAt: number | null;
  killedAt: number | null;
}

/** One user on one GPU of one holder, whichever processes the user has there. */
export interface Case {
  /** When the user was warned. */
  warnedAt: number;
  lastSeenAt: number;
  /** A process was killed, or another one computes after SIGTERM has ended it: its like gets no SIGTERM, in which it would start others. */
  isStubborn: boolean;
  processes: Readonly<Record<string, CaseProcess>>;
}

export type Cases = Readonly<Record<string, Case>>;

/** A process that computes where it may not, in a look. */
export interface Sighting {
  case: string;
  /** Names the process for good. */
  process: string;
}

export type ActionKind = 'warn' | 'terminate' | 'kill';

export interface Action<Seen extends Sighting = Sighting> {
  kind: ActionKind;
  sighting: Seen;
  /** Until SIGTERM, in ms; of warnings. */
  leftMs: number;
}

/** A user who comes back to the same GPU within this time was warned. In ms. */
const MEMORY_MS = 600_000;

/**
 * The actions that follow from a look, and the cases as they are when these are done. No process gets a signal in the look that
 * sees it first, nor before the grace since its user's warning is over.
 * @param now in ms since boot
 */
export function decideActions<Seen extends Sighting>(
  before: Cases,
  sightings: readonly Seen[],
  now: number,
  { graceMs, killMs }: { graceMs: number; killMs: number },
): { cases: Cases; actions: Action<Seen>[] } {
  const cases: Record<string, Case> = {};
  for (const [key, each] of Object.entries(before))
    if (now - each.lastSeenAt <= Math.max(graceMs, MEMORY_MS)) cases[key] = { ...each, processes: {} };
  const actions: Action<Seen>[] = [];
  const seen = new Set(sightings.map(({ process }) => process));
  for (const sighting of sightings) {
    const known = cases[sighting.case] ?? {
      warnedAt: now,
      lastSeenAt: now,
      isStubborn: false,
      processes: {},
    };
    const earlierOnes = before[sighting.case]?.processes ?? {};
    const earlier = earlierOnes[sighting.process];
    const isStubborn =
      known.isStubborn ||
      Object.entries(earlierOnes).some(([name, each]) => each.terminatedAt !== null && !seen.has(name));
    const process = { ...(earlier ?? { seenAt: now, terminatedAt: null, killedAt: null }) };
    const leftMs = Math.max(0, known.warnedAt + graceMs - now);
    const kind = earlier === undefined ? 'warn' : dueAction(process, leftMs, isStubborn, now, killMs);
    if (kind !== null) actions.push({ kind, sighting, leftMs });
    if (kind === 'terminate') process.terminatedAt = now;
    if (kind === 'kill') process.killedAt = now;
    cases[sighting.case] = {
      ...known,
      lastSeenAt: now,
      isStubborn: isStubborn || kind === 'kill',
      processes: { ...known.processes, [sighting.process]: process },
    };
  }
  return { cases, actions };
}

function dueAction(
  { terminatedAt, killedAt }: CaseProcess,
  leftMs: number,
  isStubborn: boolean,
  now: number,
  killMs: number,
): ActionKind | null {
  if (killedAt !== null || leftMs > 0) return null;
  if (terminatedAt === null) return isStubborn ? 'kill' : 'terminate';
  return now - terminatedAt >= killMs ? 'kill' : null;
}
