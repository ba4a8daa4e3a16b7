// Commands by which gpu-owner starts itself. Each loads what it needs: a job waits for some of them.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { removeOlder, shellWords, stateDirectory, usageError } from '../platform/index.ts';
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

/** A file that is still there then has no reader any more, in ms. */
const MAX_AGE_MS = 600_000;

export const KEEP_ENVIRONMENT: Command = {
  usage: 'NAME...',
  about: 'Keeps variables of the environment in a file that only their user can read, and prints its path.',
  groups: NO_OPTIONS,
  run: async ({ positionals: names }) => {
    const place = join(stateDirectory(), 'gpu-owner', 'environments');
    mkdirSync(place, { recursive: true, mode: 0o700 });
    removeOlder(place, MAX_AGE_MS);
    const path = join(place, process.getBuiltinModule('node:crypto').randomBytes(16).toString('hex'));
    const lines = names.map((name) => `export ${name}=${shellWords([process.env[name] ?? ''])}\n`);
    writeFileSync(path, lines.join(''), { mode: 0o600, flag: 'wx' });
    print(path);
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
