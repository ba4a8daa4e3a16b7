import { openSweepIfAny, RunController, withExperiment } from '../../experiments/index.ts';
import { onWarning } from '../../platform/index.ts';
import { CRITERIA_GROUP, LOCKS } from '../claim-options.ts';
import type { Command } from '../command.ts';
import { refuseThrowAway } from '../installation.ts';
import type { Parsed } from '../options.ts';
import {
  METRICS,
  metricsEndpoint,
  placeOf,
  QUEUE,
  REPLACE_COMMANDS,
  SWEEP_GROUP,
  sweepSource,
  workerOptions,
  workerSettings,
} from './options.ts';
import { openScreen, screenReporter } from './screen.ts';
import { exitCode, summary } from './summary.ts';

async function run(parsed: Parsed): Promise<void> {
  refuseThrowAway();
  const { values } = parsed;
  const place = placeOf(values);
  const workers = await workerSettings(values, null);
  const metrics = await metricsEndpoint(values);
  const sweep = await openSweepIfAny(sweepSource(parsed, place.directory));
  const kind = { create: sweep?.commandless === null, mayBeDone: false };
  await withExperiment(place, sweep, kind, async (experiment) => {
    const screen = await openScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    const reporter = screenReporter(screen, (end) => summary(end, values, true));
    try {
      const controller = new RunController({ ...experiment, ...workers, metrics, reporter });
      process.exitCode = exitCode(await controller.run(sweep, values['replace-commands'] === true));
    } finally {
      screen.end();
    }
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]',
  about: `Runs a sweep to its end: every task on its own GPUs, its output in OUTPUT_DIR/worker_*.log, its result in OUTPUT_DIR/final_results.csv. Tasks that have a row there are completed. Started again, it continues where it stopped, however it ended. Without a sweep, it runs the remaining tasks of the project.

Ctrl-C lets running tasks finish; a second Ctrl-C stops and requeues them.`,
  groups: [
    {
      options: {
        ...workerOptions('use N GPUs in all (no default)'),
        'replace-commands': REPLACE_COMMANDS,
        ...METRICS,
        ...QUEUE,
        ...LOCKS,
      },
    },
    SWEEP_GROUP,
    CRITERIA_GROUP,
  ],
  notes: `Exit code: 0 all tasks are completed; 1 some failed or were cancelled, or it has paused after failures; 129, 130, 143 ended by a signal with work left; 64 bad usage, 69 no driver or no queue, 78 a mistake in a sweep file.`,
  operands: 'files-and-command-line',
  run,
};
