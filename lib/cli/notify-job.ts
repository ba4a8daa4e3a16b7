import { JOB_EVENTS, notifyOfJob } from '../jobs/index.ts';
import type { Command } from './command.ts';
import { type Parsed, usage } from './options.ts';

async function notifyJob({ positionals: [directory, word] }: Parsed): Promise<void> {
  const event = JOB_EVENTS.find((each) => each === word);
  if (directory === undefined || event === undefined) throw usage('notify-job is for gpu-owner itself');
  await notifyOfJob(directory, event);
  process.exit(); // whatever connection is still open
}

export const COMMAND: Command = {
  usage: 'DIRECTORY started|ended',
  about: 'Tells the user of a job of its start or end, as the configuration says.',
  groups: [{ options: {} }],
  run: notifyJob,
};
