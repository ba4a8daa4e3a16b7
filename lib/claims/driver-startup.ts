import { type GPU, isInstance } from '../gpus/index.ts';
import { now, sleeping, warnOnce } from '../platform/index.ts';
import { type Effectful, takeSnapshot } from './effects.ts';

/** How long a GPU may take to start up where nothing keeps the driver awake, in ms. */
const STARTUP_TIMEOUT_MS = 10_000;
const STARTUP_POLL_MS = 100;
const STARTUP_NOTICE_MS = 2_000;

let startedUp = false;

/**
 * A look that lets GPUs start up, at the first time in a process. Where nothing keeps the driver awake, each takes one to
 * three seconds: if more than half of them are silent, or more than can be spared, that is what is probably going on,
 * rather than a GPU that hangs.
 * @param wanted how many GPUs the caller needs
 */
export function* awaitDriverStartup(wanted: number): Effectful<GPU[]> {
  const started = now();
  for (;;) {
    const gpus = yield* takeSnapshot();
    const whole = gpus.filter((gpu) => !isInstance(gpu));
    const silent = whole.filter(({ health }) => health === 'not-responding').length;
    const enough = silent <= whole.length / 2 && gpus.length - silent >= Math.min(wanted, gpus.length);
    const passed = now() - started;
    if (silent === 0 || enough || startedUp || passed > STARTUP_TIMEOUT_MS) {
      startedUp = true;
      return gpus;
    }
    if (passed > STARTUP_NOTICE_MS) {
      warnOnce(
        `the driver has not answered for ${silent} of ${whole.length} GPUs yet; they may be starting up.`,
      );
    }
    yield* sleeping(STARTUP_POLL_MS);
  }
}
