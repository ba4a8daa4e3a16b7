// Who holds GPUs and who waits for some, read in the test's process: polls that start the command cost most of a test.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import type { Activity, readActivity } from '../../lib/status/activity.ts';
import { bundle } from './bundle.ts';
import { root } from './machine.ts';

export type { Activity };

/** Built once: to load the modules one by one takes as long as twenty starts of the command. */
let built: { readActivity: typeof readActivity } | undefined;

export function activityIn(lockDirectory: string): Activity {
  built ??= createRequire(import.meta.url)(bundle(join(root, 'lib/status/activity.ts'))) as {
    readActivity: typeof readActivity;
  };
  return built.readActivity(lockDirectory);
}
