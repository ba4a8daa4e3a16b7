import { sleeping, type Waiting } from '../platform/index.ts';
import type { Claimant } from './convention.ts';

/**
 * Claims share safe-gpu's lock, so in a stream of them it would never come free, and a program of safe-gpu, which wants it
 * alone, would starve. So sharing has periods, and newcomers wait for the end of one that has lasted this long.
 */
const PERIOD_MS = 5_000;
/** How long the lock then stays free, in ms: enough for a process that is blocked in lockf(3) to be woken and to have it. */
const GAP_MS = 100;
const POLL_MS = 10;
/** How long a newcomer waits for that end at most, in ms: one that is suspended while it shares must not stop all others. */
const PERIOD_END_TIMEOUT_MS = 2_000;
const MAX_PERIOD_NUMBER = 2 ** 31 - 1;

/** A period of sharing. In ms. */
interface Period {
  /** Claims that come in this period share the byte of this number. */
  number: number;
  /** Until then the lock is left free. */
  since: number;
  /** Newcomers wait for its end. */
  full: boolean;
}

/**
 * Waits until a newcomer may share the lock. The period is known to all claimants of the machine by a note in their lock
 * directory; only the kernel says whether a claim shares the lock.
 * @param isShared whether a claim shares the lock now, or this byte of it
 * @returns the byte to share
 */
export function* waitForSharing(
  { note }: Pick<Claimant, 'note'>,
  isShared: (byte?: number) => boolean,
): Waiting<number> {
  const started = Date.now();
  for (;;) {
    const now = Date.now();
    const waited = now - started;
    const text = note.read();
    const { number, since, full } = read(text, now);
    if (waited < 0 || waited > PERIOD_END_TIMEOUT_MS + 5 * GAP_MS) return number; // the clock was set, or the note was changed
    if (since > now) {
      yield* sleeping(since - now);
    } else if (!full) {
      const shared = isShared();
      if (shared && text !== '' && now - since >= PERIOD_MS) {
        note.write(format({ number, since, full: true }));
        continue;
      }
      // Before two have met, there is nothing to note.
      if (shared ? text === '' : text !== '' && now - since >= PERIOD_MS)
        note.write(format({ number, since: now, full }));
      return number;
    } else if (isShared(number) && waited < PERIOD_END_TIMEOUT_MS) {
      yield* sleeping(POLL_MS);
    } else {
      // While a claim of an older period is suspended, no program can have the lock alone, so a gap would be useless.
      note.write(
        format({
          number: (number + 1) % MAX_PERIOD_NUMBER,
          since: isShared() ? now : now + GAP_MS,
          full: false,
        }),
      );
    }
  }
}

/** Anybody may have written it, or the clock was set: a period that can't be is one that is over. */
function read(text: string, now: number): Period {
  const [, number, since, full] = /^period (\d{1,10}) since (\d{1,15}) full ([01])$/.exec(text) ?? [];
  const began = Number(since ?? 0);
  return {
    number: Math.min(Number(number ?? 0), MAX_PERIOD_NUMBER),
    since: began > now + GAP_MS ? 0 : began,
    full: full === '1',
  };
}

function format({ number, since, full }: Period): string {
  return `period ${number} since ${since} full ${full ? 1 : 0}`;
}
