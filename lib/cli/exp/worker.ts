import { overview, Tally } from '../../experiments/index.ts';
import { hostName, onWarning } from '../../platform/index.ts';
import { parse, refuseWords } from '../arguments.ts';
import type { Command } from '../command.ts';
import { COMMON_HELP, CRITERIA_HELP } from '../help.ts';
import { isTerminal, print } from '../output.ts';
import { Crew, whyStopped } from './crew.ts';
import { Ending } from './ending.ts';
import { METRICS, METRICS_HELP, openMetrics } from './metrics-options.ts';
import { outcomeOfWorkers } from './outcome.ts';
import { openWorkplace, QUEUE, QUEUE_HELP, withQueue } from './queue-options.ts';
import { plainScreen } from './screen.ts';
import { WORKERS, WORKERS_HELP, workerSettings } from './worker-options.ts';

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
  await withQueue(values, async (queue) => {
    const { settings, workers, grace } = await workerSettings(values, 1);
    const screen = plainScreen();
    const ending = new Ending();
    onWarning((message) => screen.line(`warning: ${message}`));
    const tally = new Tally();
    const metrics = await openMetrics(
      values,
      () => tally.families(),
      (text) => screen.line(text),
    );
    const crew = new Crew({
      queue,
      project: openWorkplace(values),
      settings,
      grace,
      size: workers,
      host: hostName(),
      record: (text) => screen.line(text),
      onFailure: () => {},
      watched: isTerminal(1),
      tally,
    });
    ending.obey(crew, (text) => screen.line(text));
    try {
      const ends = await crew.run();
      for (const text of whyStopped(ends)) screen.line(text);
      // A queue that is gone by now is no failure of workers that have finished.
      const now = await overview(queue).catch(() => null);
      process.exitCode = outcomeOfWorkers(now, ends, ending.code);
    } finally {
      metrics?.close();
      ending.close();
    }
  });
}

export const COMMAND: Command = { run: worker, help: HELP, options: OPTIONS };
