// Commands by which gpu-owner starts itself. Each loads what it needs: a job waits for some of them.
import { usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import { print } from './output.ts';

const NO_OPTIONS = [{ options: {} }];

export const NOTIFY_JOB: Command = {
  usage: 'DIRECTORY started|ended',
  about: 'Tells the user of a job of its start or end, as the configuration says.',
  groups: NO_OPTIONS,
  run: async ({ positionals: [directory, word] }) => {
    const { JOB_EVENTS, notifyOfJob } = await import('../jobs/index.ts');
    const event = JOB_EVENTS.find((each) => each === word);
    if (directory === undefined || event === undefined)
      throw usageError('notify-job is for gpu-owner itself');
    await notifyOfJob(directory, event);
    process.exit(); // a connection may still be open
  },
};

export const MOVER: Command = {
  usage: '[KEY find|confirm|cancel KEY]',
  about:
    'Moves waiting jobs between machines. KEY: says what has become of a job in this place, or decides it.',
  groups: NO_OPTIONS,
  run: async ({ positionals: [key, name, other] }) => {
    if (key === undefined) {
      const { followJobs, hostOf, Mover, MovingJobs } = await import('../fleet/index.ts');
      await new Mover(new MovingJobs(), hostOf, followJobs).run();
      process.exit(); // connections may still be closing
    }
    const { JobStore, parseMove, settleMove } = await import('../jobs/index.ts');
    const isPlain = name === 'confirm' || name === 'find';
    if (!isPlain && (name !== 'cancel' || other === undefined))
      throw usageError('mover is for gpu-owner itself');
    const action = isPlain ? name : { cancel: parseMove(other ?? '').key };
    print(JSON.stringify([await settleMove(JobStore.open(), parseMove(key).key, action)]));
  },
};
