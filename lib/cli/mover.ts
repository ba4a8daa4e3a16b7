import { followJobs, hostOf, Mover, MovingJobs } from '../fleet/index.ts';
import type { Command } from './command.ts';

async function move(): Promise<void> {
  await new Mover(new MovingJobs(), hostOf, followJobs).run();
  process.exit(); // connections may still be closing
}

export const COMMAND: Command = {
  usage: '',
  about: 'Moves waiting jobs between machines, until none is left that may move.',
  groups: [{ options: {} }],
  run: move,
};
