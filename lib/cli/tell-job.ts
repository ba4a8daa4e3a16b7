import { whereJobComputes } from '../claims/index.ts';
import { getGPUs } from '../status/index.ts';
import type { Command } from './command.ts';
import { say } from './output.ts';

/** The placeholder asks again. */
const NOTHING_FOUND = 1;

async function tellJob({ positionals: [lockDirectory, ...uuids] }: { positionals: string[] }): Promise<void> {
  const text = whereJobComputes(uuids, await getGPUs(lockDirectory ? { lockDirectory } : {}));
  if (text === null) process.exit(NOTHING_FOUND);
  say(text);
}

export const COMMAND: Command = {
  usage: 'LOCK-DIRECTORY UUID...',
  about: 'Tells a job, on standard error, that it computes on GPUs that it has not claimed.',
  groups: [{ options: {} }],
  run: tellJob,
};
