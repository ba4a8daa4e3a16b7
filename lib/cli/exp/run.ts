import { openQueue } from '../../experiments/index.ts';
import { onWarning } from '../../platform/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { COMMON_HELP, CRITERIA_HELP } from '../help.ts';
import { print } from '../output.ts';
import { noSweep, sweepOf } from './asked-sweep.ts';
import { Ending } from './ending.ts';
import { METRICS, METRICS_HELP } from './metrics-options.ts';
import { openWorkplace, projectOf, QUEUE, QUEUE_HELP, urlOf } from './queue-options.ts';
import { openScreen } from './screen.ts';
import { Session } from './session.ts';
import { SWEEP, SWEEP_HELP } from './sweep-options.ts';
import { WORKERS, WORKERS_HELP, workerSettings } from './worker-options.ts';

const HELP = `Usage: gpu-owner exp run [OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]

Runs a sweep to its end: every task on GPUs of its own, its output in
OUTPUT_DIR/worker_*.log, its result in OUTPUT_DIR/final_results.csv. Tasks that
have a row there are done. Started again, it goes on where it was, however it
ended; without a sweep, with the tasks that the project has.

Ctrl-C: no task is started any more, and those that run are finished; once more:
they are ended at once, and given back.

  -n, --gpus N|all          how many GPUs it may take in all (no default)
${WORKERS_HELP}
  --replace-commands        known tasks with another command get the new one,
                            unless they are completed
${METRICS_HELP}
${QUEUE_HELP}

${SWEEP_HELP}

${COMMON_HELP}

${CRITERIA_HELP}

Exit code: 0 all tasks are completed; 1 some failed or were cancelled, or it has
paused after failures; 129, 130, 143 ended by a signal with work left; 64 bad
usage, 69 no driver or no queue, 78 a mistake in a sweep file.`;

const OPTIONS = {
  ...WORKERS,
  ...SWEEP,
  ...QUEUE,
  ...METRICS,
  'replace-commands': { type: 'boolean' },
} as const;

async function run(args: readonly string[]): Promise<void> {
  const parsed = parse(args, OPTIONS, 'behind-dashes');
  const { values } = parsed;
  if (values.help) return print(HELP);
  const directory = projectOf(values);
  const { settings, workers, grace } = await workerSettings(values, null);
  const sweep = await sweepOf(parsed, directory);
  const queue = await openQueue(urlOf(values), directory, { create: sweep?.commandless === null });
  if (queue === null) throw sweep?.commandless ?? noSweep(directory);
  const project = openWorkplace(values);
  const ending = new Ending();
  try {
    const { active, pending, completed } = await queue.counts();
    if (sweep === null && active + pending + completed === 0) throw noSweep(directory);
    const screen = await openScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    try {
      const session = new Session({ queue, project, settings, workers, grace, screen, ending, values });
      process.exitCode = await session.run(sweep, values['replace-commands'] === true);
    } finally {
      screen.end();
    }
  } finally {
    await queue.close();
    ending.close();
  }
}

export const COMMAND: Command = {
  run,
  help: HELP,
  options: OPTIONS,
  operands: 'files-and-command-line',
};
