import { GPUOwnerError } from '../errors.ts';
import { JobStore, resolveJob, waitForJobs } from '../jobs/index.ts';
import { parseDuration } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './options.ts';
import { say } from './output.ts';

const GROUPS = [
  {
    options: {
      timeout: {
        value: 'DURATION',
        help: 'give up after DURATION (30s, 10m, 2h)',
        candidates: ['10m', '1h'],
      },
    },
  },
] as const satisfies readonly OptionGroup[];

async function wait({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0)
    throw usage('for which job? Give its number or name; `gpu-owner jobs` lists them');
  const timeout = values.timeout === undefined ? null : parseDuration(values.timeout, '--timeout');
  const store = JobStore.open();
  const ids = positionals.map((word) => resolveJob(store, word));
  const ends = await waitForJobs(store, ids, timeout);
  if (ends === null) {
    throw new GPUOwnerError(
      'ERR_TIMEOUT',
      `timed out after ${values.timeout}: not all of these jobs have ended.`,
    );
  }
  for (const { id, state, reason } of ends) {
    if (state === 'lost') say(`job ${id} was lost: nobody knows its exit code`);
    else if (state === 'cancelled') say(`job ${id} was cancelled${reason ? `: ${reason}` : ''}`);
    else if (reason) say(`job ${id}: ${reason}`);
  }
  process.exitCode = ends.find(({ exitCode }) => exitCode !== 0)?.exitCode ?? 0;
}

export const COMMAND: Command = {
  usage: 'JOB... [--timeout DURATION]',
  about: `Waits until jobs have ended. JOB is a number or a name.`,
  groups: GROUPS,
  notes: `Exit code: the job's own, as \`gpu-owner run\` would have returned it; of several, the first that isn't 0; 143 for a job that was cancelled before it started, 137 for a lost one, 75 if the time is up.`,
  operands: 'jobs',
  run: wait,
};
