import { sleeping, type Waiting } from '../waits.ts';
import type { Claimant } from './convention.ts';

/**
 * Claims share safe-gpu's lock, so in a stream of them it would never come free, and whoever wants it alone would starve. After
 * so many ms of continuous sharing newcomers wait until it is free.
 */
const LONGEST = 5_000;
/** How long it then stays free, in ms: enough for a process that is blocked in lockf(3) to be woken and to have it. */
const GAP = 100;
const PAUSE = 10;
/** How long a newcomer waits at most, in ms: one that is stopped while it shares must not stop all others. */
const PATIENCE = 15_000;

/** When the sharing began, whether newcomers wait for its end, and until when the lock is left free after it. In ms. */
interface Period {
  since: number;
  full: boolean;
  gapEnds: number;
}

/**
 * Waits until a newcomer may share the lock. The period is known to all claimants of the machine by a note in their lock
 * directory; whether it lasts is only ever taken from the kernel.
 * @param isShared whether anybody shares it now
 */
export function* waitForTurn({ note }: Pick<Claimant, 'note'>, isShared: () => boolean): Waiting<void> {
  const started = Date.now();
  for (;;) {
    const now = Date.now();
    const text = note.read();
    const period = read(text, now);
    const late = now - started > PATIENCE || now < started;
    if (isShared()) {
      // Before two have met, there is nothing to note.
      if (late || text === '') return note.write(format({ since: now, full: false, gapEnds: 0 }));
      if (!period.full && now - period.since < LONGEST) return;
      if (!period.full) note.write(format({ ...period, full: true }));
      yield* sleeping(PAUSE);
    } else if (period.full && period.gapEnds === 0) {
      note.write(format({ ...period, gapEnds: now + GAP }));
      yield* sleeping(GAP);
    } else if (period.gapEnds > now) {
      yield* sleeping(period.gapEnds - now);
    } else {
      if (text !== '') note.write(format({ since: now, full: false, gapEnds: 0 }));
      return;
    }
  }
}

/** Anybody may have written it: times that can't be are as good as none. */
function read(text: string, now: number): Period {
  const [, since, full, gapEnds] = /^since (\d{1,15}) full ([01]) gap (\d{1,15})$/.exec(text) ?? [];
  const began = Number(since ?? now);
  const ends = Number(gapEnds ?? 0);
  return {
    since: began > now ? now : began,
    full: full === '1',
    gapEnds: ends > now + GAP ? 0 : ends,
  };
}

function format({ since, full, gapEnds }: Period): string {
  return `since ${since} full ${full ? 1 : 0} gap ${gapEnds}`;
}
