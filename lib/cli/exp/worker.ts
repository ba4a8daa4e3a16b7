import { onWarning, parseDuration } from '../../platform/index.ts';
import { isOver, loadRunning } from '../../sweeps/index.ts';
import { DURATIONS, WORKER_CRITERIA_GROUP } from '../claim-options.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from '../command-line.ts';
import { refuseThrowAway } from '../installation.ts';
import { locationOf, QUEUE } from './queue-options.ts';
import { counts } from './render.ts';
import { plainScreen } from './screen.ts';
import { exitCodeOfWorkers } from './summary.ts';
import { workerOptions, workerRequest } from './worker-options.ts';

/** How long a worker waits for a task list that doesn't exist yet, or has no tasks. */
const DEFAULT_WAIT = '1m';

const GROUPS = [
  {
    options: {
      ...workerOptions("use N GPUs in all (default: one worker's)"),
      'wait-for-tasks': {
        value: 'DURATION',
        help: `wait DURATION for a task list that doesn't exist yet (default ${DEFAULT_WAIT}; 0: don't wait)`,
        candidates: DURATIONS,
      },
      'over-ssh': {
        value: 'NAME',
        help: 'ask the manager on standard input and output for tasks, as the host NAME; for exp run --on',
        isHidden: true,
      },
      ...QUEUE,
    },
  },
  WORKER_CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

async function worker(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { joinExperiment, runWorkers, runWorkersOfManager, settingsFor } = await loadRunning();
  refuseThrowAway();
  rejectOperands(parsed);
  const { values } = parsed;
  const location = locationOf(values);
  const waitMs = parseDuration(values['wait-for-tasks'] ?? DEFAULT_WAIT, '--wait-for-tasks');
  const settings = workerRequest(values, 1);
  const name = values['over-ssh'];
  if (name !== undefined) return runWorkersOfManager(settings, location.directory, name);
  await settingsFor(settings); // what can't be here can't be after a wait either
  const tell = (text: string) => plainScreen().line(text);
  onWarning((message) => tell(`warning: ${message}`));
  process.exitCode = await joinExperiment(location, { waitMs, tell }, async (experiment) => {
    const { progress, workers } = await runWorkers({ ...settings, ...experiment, tell });
    if (progress?.total === 0) tell('the queue has no tasks; `gpu-owner exp run` and `exp manager` add them');
    else if (progress !== null && isOver(progress)) tell(`no task is left: ${counts(progress)}`);
    return exitCodeOfWorkers(progress, workers, experiment.signals.exitCode);
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Adds workers to an experiment that \`gpu-owner exp run\` has started. They wait for a task list that doesn't exist yet. They end when no task is left, or on Ctrl-C, as those of \`exp run\` do. They don't write tables of results: \`exp run\` or \`exp manager\` does, even if it starts later.`,
  groups: GROUPS,
  notes: `Exit code: 0 no task is left; 1 a worker stopped after failures; 129, 130, 143 ended by a signal with work left; 64 bad usage, 69 no driver or no queue.`,
  run: worker,
};
