import { setMaxListeners } from 'node:events';
import { GPUOwnerError } from '../errors.ts';
import { exitCodeOfEnd, formatName, type Job, JobStore, resolveNames, waitForNamed } from '../jobs/index.ts';
import { parseDuration, timerMs, usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { byHost } from './job-address.ts';
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
    throw usageError('for which job? Give its number or name; `gpu-owner jobs` lists them');
  const timeout = values.timeout === undefined ? null : parseDuration(values.timeout, '--timeout');
  const { here, elsewhere } = byHost(positionals);
  const others = new AbortController();
  setMaxListeners(0, others.signal); // each job and host has one
  const away =
    elsewhere.size === 0
      ? []
      : (await import('../fleet/index.ts')).waitElsewhere(elsewhere, others.signal, say);
  const timer =
    elsewhere.size > 0 && timeout !== null ? setTimeout(() => others.abort(), timerMs(timeout)) : null;
  const [own, foreign] = await Promise.all([waitHere(here, timeout), away]);
  if (timer !== null) clearTimeout(timer);
  if (own === null || foreign === null) {
    throw new GPUOwnerError(
      'ERR_TIMEOUT',
      `timed out after ${values.timeout}: not all of these jobs have ended.`,
    );
  }
  const ends = [...own, ...foreign].sort((a, b) => a.at - b.at);
  for (const { job, address } of ends) {
    const { state, reason } = job;
    if (state === 'lost') say(`job ${address} was lost: its exit code is unknown`);
    else if (state === 'cancelled') say(`job ${address} was cancelled${reason ? `: ${reason}` : ''}`);
    else if (reason) say(`job ${address}: ${reason}`);
  }
  const codes = ends.map(({ job }) => exitCodeOfEnd(job));
  process.exit(codes.find((code) => code !== 0) ?? 0);
}

/** @returns null: the time is up */
async function waitHere(
  here: readonly { word: string; at: number }[],
  timeout: number | null,
): Promise<{ at: number; job: Job; address: string }[] | null> {
  if (here.length === 0) return [];
  const store = JobStore.open();
  const all = resolveNames(
    store,
    here.map(({ word }) => word),
  );
  const ends = await waitForNamed(store, all, timeout);
  if (ends === null) return null;
  return here.flatMap(({ at }, i) => {
    const [job, named] = [ends[i], all[i]];
    return job === undefined || named === undefined ? [] : [{ at, job, address: formatName(named) }];
  });
}

export const COMMAND: Command = {
  usage: 'JOB... [--timeout DURATION]',
  about: `Waits until jobs have ended. JOB is a number or a name, HOST:JOB one of another machine. A lost connection ends nothing: wait reconnects.`,
  groups: GROUPS,
  notes: `Exit code: the job's own, as \`gpu-owner run\` would have returned it; of several, the first that isn't 0; 143 for a job that was cancelled before it started, 137 for a lost one, 75 if the time is up, 69 if a host doesn't answer at first.`,
  operands: 'jobs',
  run: wait,
};
