import { openSweepIfAny, RunController, withExperiment } from '../../experiments/index.ts';
import { onWarning } from '../../platform/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { COMMON_HELP, CRITERIA_HELP } from '../help.ts';
import { print } from '../output.ts';
import {
  METRICS,
  METRICS_HELP,
  metricsEndpoint,
  placeOf,
  QUEUE,
  QUEUE_HELP,
  SWEEP,
  SWEEP_HELP,
  sweepSource,
  WORKERS,
  WORKERS_HELP,
  workerSettings,
} from './options.ts';
import { openScreen, screenReporter } from './screen.ts';
import { exitCode, summary } from './summary.ts';

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
  const place = placeOf(values);
  const workers = await workerSettings(values, null);
  const metrics = await metricsEndpoint(values);
  const sweep = await openSweepIfAny(sweepSource(parsed, place.directory));
  const kind = { create: sweep?.commandless === null, mayBeDone: false };
  await withExperiment(place, sweep, kind, async (experiment) => {
    const screen = await openScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    const reporter = screenReporter(screen, (end) => summary(experiment.queue, end, values, true));
    try {
      const controller = new RunController({ ...experiment, ...workers, metrics, reporter });
      process.exitCode = exitCode(await controller.run(sweep, values['replace-commands'] === true));
    } finally {
      screen.end();
    }
  });
}

export const COMMAND: Command = {
  run,
  help: HELP,
  options: OPTIONS,
  operands: 'files-and-command-line',
};
