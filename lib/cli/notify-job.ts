import { JOB_EVENTS, notifyOfJob } from '../jobs/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './command-line.ts';

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

async function notifyJob({ positionals: [directory, word] }: Parsed<typeof GROUPS>): Promise<void> {
  const event = JOB_EVENTS.find((each) => each === word);
  if (directory === undefined || event === undefined) throw usage('notify-job is for gpu-owner itself');
  await notifyOfJob(directory, event);
  process.exit(); // whatever connection is still open
}

export const COMMAND: Command = {
  usage: 'DIRECTORY started|ended',
  about: 'Tells the user of a job of its start or end, as the configuration says.',
  groups: GROUPS,
  run: notifyJob,
};
