import { openWorkplace, runWorkers, ShutdownSignals, withQueue } from '../../experiments/index.ts';
import { onWarning } from '../../platform/index.ts';
import { parse, refuseWords } from '../arguments.ts';
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
  WORKERS,
  WORKERS_HELP,
  workerSettings,
} from './options.ts';
import { plainScreen } from './screen.ts';
import { exitCodeOfWorkers } from './summary.ts';

const HELP = `Usage: gpu-owner exp worker [OPTIONS]

Adds workers to an experiment that \`gpu-owner exp run\` has begun. They end when
no task is left, or on Ctrl-C, as those of \`exp run\` do. They don't write
tables of results: a manager (\`exp run\`) does, at the latest when it is started
again.

  -n, --gpus N|all          how many GPUs they may take in all (default: one
                            worker's)
${WORKERS_HELP}
${METRICS_HELP}
${QUEUE_HELP}
${COMMON_HELP}

${CRITERIA_HELP}

Exit code: 0 no task is left; 1 a worker stopped after failures; 129, 130, 143
ended by a signal with work left; 64 bad usage, 69 no driver or no queue.`;

const OPTIONS = { ...WORKERS, ...QUEUE, ...METRICS } as const;

async function worker(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const place = placeOf(values);
  await withQueue(place, async (queue) => {
    const settings = await workerSettings(values, 1);
    const metrics = await metricsEndpoint(values);
    const tell = (text: string) => plainScreen().line(text);
    const signals = new ShutdownSignals();
    onWarning((message) => tell(`warning: ${message}`));
    try {
      const project = openWorkplace(place);
      const end = await runWorkers({ ...settings, queue, project, signals, metrics, tell });
      process.exitCode = exitCodeOfWorkers(end.overview, end.workers, signals.exitCode);
    } finally {
      signals.close();
    }
  });
}

export const COMMAND: Command = { run: worker, help: HELP, options: OPTIONS };
