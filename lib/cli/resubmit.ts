import { JobStore, resubmitNamed } from '../jobs/index.ts';
import { usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { byHost } from './job-address.ts';
import { print } from './output.ts';

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

async function resubmit({ positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0)
    throw usageError('which job? Give its number or name, or `failed` or `lost` for all of these');
  const { here, elsewhere } = byHost(positionals);
  if (elsewhere.size > 0) {
    const { commandElsewhere } = await import('./jobs-elsewhere.ts');
    await commandElsewhere(elsewhere, ['resubmit'], [], 0, (host, id) => print(`${host}:${id}`));
  }
  if (here.length === 0) return;
  refuseThrowAway();
  const exitCode = await resubmitNamed(
    JobStore.open(),
    here.map(({ word }) => word),
  );
  if (exitCode !== 0) process.exit(exitCode);
}

export const COMMAND: Command = {
  usage: 'JOB...|failed|lost',
  about: `Submits ended jobs again, with their original arguments, environment and directory, and prints their new numbers. JOB is a number or a name, or HOST:JOB for a job of another machine, which runs there again. \`failed\` stands for all jobs that failed, \`lost\` for all lost ones (by a restart of the machine, for example), unless they were resubmitted already; of an array, only the failed or unfinished parts run again. 17_3 is part 3 of the array 17: it becomes a new job, or runs again in its array if that is still running.`,
  groups: GROUPS,
  operands: 'jobs',
  run: resubmit,
};
