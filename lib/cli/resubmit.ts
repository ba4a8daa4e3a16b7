import {
  arrayOf,
  describePart,
  FAILED,
  formatArray,
  isLiving,
  JobStore,
  jobsInState,
  LOST,
  partOf,
  partsToResubmit,
  resolveJob,
  resubmitJob,
} from '../jobs/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { byHost } from './job-address.ts';
import { print } from './output.ts';

const GROUPS = [
  {
    options: {
      on: {
        value: 'HOST|any',
        help: 'submit them on another machine, as `submit --on` does; give numbers, names or HOST:JOB',
      },
      env: {
        value: 'NAME[=VALUE]',
        isRepeatable: true,
        help: "with --on, carry a variable of the job's environment over; NAME can be a pattern ('WANDB_*')",
      },
    },
  },
] as const satisfies readonly OptionGroup[];

async function resubmit({ values, positionals }: Parsed<typeof GROUPS>): Promise<void> {
  if (positionals.length === 0)
    throw usage('which job? Give its number or name, or `failed` or `lost` for all of these');
  if (values.on !== undefined)
    return (await import('./resubmit-on.ts')).resubmitOn(values.on, positionals, values.env ?? []);
  if (values.env !== undefined) throw usage('--env belongs to --on: here a job keeps its environment');
  const { here, elsewhere } = byHost(positionals);
  if (elsewhere.size > 0) {
    const { commandElsewhere } = await import('./jobs-elsewhere.ts');
    await commandElsewhere(elsewhere, ['resubmit'], [], 0, (host, id) => print(`${host}:${id}`));
  }
  if (here.length === 0) return;
  refuseThrowAway();
  const store = JobStore.open();
  const ids: number[] = [];
  /** The parts of arrays that are meant. */
  const arrays = new Map<number, string>();
  const parts = new Map<number, number[]>();
  for (const { word } of here) {
    const named = partOf(store, word);
    if (word === LOST || word === FAILED) {
      for (const id of jobsInState(store, word)) {
        const array = partsToResubmit(store, id, word);
        if (array === '') continue;
        if (array !== null) arrays.set(id, array);
        ids.push(id);
      }
      continue;
    }
    const id = named === null ? resolveJob(store, word) : named.id;
    const part = named ?? store.read(id)?.request.part;
    if (part === undefined) {
      ids.push(id);
      continue;
    }
    if (isLiving(describePart(store, part).state)) throw usage(`job ${word} has not ended; cancel it first`);
    parts.set(part.id, [...(parts.get(part.id) ?? []), part.index]);
  }
  for (const [id, some] of parts) {
    const array = arrayOf(store.read(id)?.request ?? {});
    arrays.set(
      id,
      formatArray(
        some.sort((a, b) => a - b),
        array?.atOnce ?? null,
      ),
    );
    ids.push(id);
  }
  const renumbered = new Map<number, number>();
  // In their order: those that others follow come before.
  for (const id of [...new Set(ids)].sort((a, b) => a - b)) {
    const again = await resubmitJob(store, id, renumbered, arrays.get(id));
    if (again.exitCode !== 0) process.exit(again.exitCode);
    renumbered.set(id, again.id);
  }
}

export const COMMAND: Command = {
  usage: '[--on HOST|any] JOB...|failed|lost',
  about: `Submits ended jobs again, with their original arguments, environment and directory, and prints their new numbers. JOB is a number or a name, or HOST:JOB for a job of another machine, which runs there again unless --on names another host. \`failed\` stands for all jobs that failed, \`lost\` for all lost ones (by a restart of the machine, for example), unless they were resubmitted already; of an array, only the failed or unfinished parts run again. 17_3 is part 3 of the array 17: it becomes a new job, or runs again in its array if that is still running.`,
  groups: GROUPS,
  operands: 'jobs',
  run: resubmit,
};
