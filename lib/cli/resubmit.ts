import { JobStore, LOST, lostJobs, resolveJob, resubmitJob } from '../jobs/index.ts';
import type { Command } from './command.ts';
import { refuseThrowAway } from './installation.ts';
import { byHost } from './job-address.ts';
import { type OptionGroup, type Parsed, usage } from './options.ts';
import { print } from './output.ts';

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

async function resubmit({ positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0)
    throw usage('which job? Give its number or name, or `lost` for all that were lost');
  const { here, elsewhere } = byHost(positionals);
  if (elsewhere.size > 0) {
    const { commandElsewhere } = await import('./jobs-elsewhere.ts');
    await commandElsewhere(elsewhere, ['resubmit'], 0, (host, id) => print(`${host}:${id}`));
  }
  if (here.length === 0) return;
  refuseThrowAway();
  const store = JobStore.open();
  const ids = here.flatMap(({ word }) => (word === LOST ? lostJobs(store) : [resolveJob(store, word)]));
  const renumbered = new Map<number, number>();
  // In their order: those that others follow come before.
  for (const id of [...new Set(ids)].sort((a, b) => a - b)) {
    const again = await resubmitJob(store, id, renumbered);
    if (again.exitCode !== 0) process.exit(again.exitCode);
    renumbered.set(id, again.id);
  }
}

export const COMMAND: Command = {
  usage: 'JOB...|lost',
  about: `Submits ended jobs again, with their original arguments, environment and directory, and prints their new numbers. JOB is a number or a name, HOST:JOB one of another machine, where it is submitted again; \`lost\` stands for all jobs that were lost (by a restart of the machine, for example) and weren't resubmitted since.`,
  groups: GROUPS,
  operands: 'jobs',
  run: resubmit,
};
