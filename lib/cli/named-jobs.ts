// `jobs JOB...` and `jobs extend`.
import { CommandEnd, GPUOwnerError } from '../errors.ts';
import { describeNamed, extendJob, JobStore, resolveJobs, resolveNames } from '../jobs/index.ts';
import { formatDuration, parseDuration, usageError } from '../platform/index.ts';
import type { QueueEntry } from '../shapes/index.ts';
import { queueWith } from '../status/index.ts';
import { addressOf, byHost, jobWords } from './job-address.ts';
import { jobPage } from './job-table.ts';
import { print, say, show } from './output.ts';
import { refresh } from './refresh.ts';

/** The wait queue, if requests of the user may be in it: the driver is asked for it. Without the driver, locks tell enough. */
export async function queueOf(user: string | null): Promise<readonly QueueEntry[]> {
  const own = process.geteuid?.();
  try {
    return await queueWith(({ info }) => user !== null || info.uid === own);
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    return [];
  }
}

/** Shows jobs one by one, with all that is known of them. */
export async function showEach(
  words: readonly string[],
  isJSON: boolean,
  interval: number | null,
): Promise<void> {
  const positionals = jobWords(words);
  const addresses = positionals.map(addressOf);
  const elsewhere = addresses.filter((address) => address !== null);
  if (elsewhere.length > 0) {
    if (elsewhere.length < addresses.length || interval !== null)
      throw usageError('show jobs of other machines by themselves, and without --watch');
    const { jobsElsewhere } = await import('../fleet/index.ts');
    if (isJSON) return show(await jobsElsewhere(elsewhere, say));
    let gap = '';
    await Promise.all(
      elsewhere.map(async (address) => {
        try {
          const [job] = await jobsElsewhere([address], say);
          print(`${gap}${jobPage(job)}`);
          gap = '\n';
        } catch (error) {
          if (!(error instanceof CommandEnd)) throw error;
          say(error.error.message);
          process.exitCode ||= error.exitCode;
        }
      }),
    );
    return;
  }
  const store = JobStore.open();
  const all = resolveNames(store, positionals);
  await refresh('jobs', interval, async () => {
    const queue = await queueOf(null);
    const found = all.map((named) => describeNamed(store, named, queue));
    return isJSON ? found : found.map(jobPage).join('\n\n');
  });
}

/** `jobs extend JOB... DURATION` */
export async function extend(words: readonly string[]): Promise<void> {
  const duration = words.at(-1) ?? '';
  if (words.length < 2)
    throw usageError('write gpu-owner jobs extend 17 2h: it lets job 17 run 2 hours longer');
  const ms = parseDuration(duration, 'jobs extend');
  if (ms === 0) throw usageError('jobs extend: how much longer? For example: gpu-owner jobs extend 17 2h');
  const { here, elsewhere } = byHost(words.slice(0, -1));
  const others =
    elsewhere.size === 0
      ? null
      : (await import('./jobs-elsewhere.ts')).commandElsewhere(elsewhere, ['jobs', 'extend'], [duration]);
  if (here.length > 0) {
    const store = JobStore.open();
    const words = here.map(({ word }) => word);
    for (const [i, id] of resolveJobs(store, words).entries())
      print(`job ${words[i]} may run ${formatDuration(await extendJob(store, id, ms))}`);
  }
  await others;
}
