import { ManagerController, openSweepIfAny, withExperiment } from '../../experiments/index.ts';
import { onWarning, shellWords } from '../../platform/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import {
  METRICS,
  METRICS_HELP,
  metricsEndpoint,
  PROTOCOL,
  PROTOCOL_HELP,
  placeOf,
  protocolSettings,
  QUEUE,
  QUEUE_HELP,
  SWEEP,
  SWEEP_HELP,
  sameQueue,
  sweepSource,
} from './options.ts';
import { plainScreen, screenReporter } from './screen.ts';
import { exitCode, summary } from './summary.ts';

const HELP = `Usage: gpu-owner exp manager [OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]

Adds the tasks of a sweep, gives them out, and writes the tables of results,
without a GPU and without running anything itself. Workers are those of
\`gpu-owner exp worker\`, and programs that ask for tasks over TCP. It may be
killed and started again at any time; of two, one watches until the other is
gone. It ends when every task has come to its end.

  --stay                    go on then, until a signal comes
  --replace-commands        known tasks with another command get the new one,
                            unless they are completed
${METRICS_HELP}
${QUEUE_HELP}

${PROTOCOL_HELP}

${SWEEP_HELP}

${EVERY_HELP}

Exit code: 0 all tasks are completed; 1 some failed or were cancelled; 129, 130,
143 ended by a signal with work left; 64 bad usage, also where the port is in
use; 69 no queue, or none any longer; 78 a mistake in a sweep file.`;

const OPTIONS = {
  ...SWEEP,
  ...QUEUE,
  ...METRICS,
  ...PROTOCOL,
  stay: { type: 'boolean' },
  'replace-commands': { type: 'boolean' },
} as const;

async function manager(args: readonly string[]): Promise<void> {
  const parsed = parse(args, OPTIONS, 'behind-dashes');
  const { values } = parsed;
  if (values.help) return print(HELP);
  const place = placeOf(values);
  const protocol = await protocolSettings(values);
  const metrics = await metricsEndpoint(values);
  const stay = values.stay === true;
  const sweep = await openSweepIfAny(sweepSource(parsed, place.directory));
  // Workers that ask over TCP know themselves what to run.
  const create = protocol.endpoints.length > 0 || sweep === null || sweep.commandless === null;
  const resumeCommand = shellWords(['gpu-owner', 'exp', 'resume', ...sameQueue(values)]);
  await withExperiment(place, sweep, { create, mayBeDone: stay }, async (experiment) => {
    const screen = plainScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    const reporter = screenReporter(screen, (end) => summary(experiment.queue, end, values, false));
    const options = { ...experiment, protocol, metrics, stay, reporter, resumeCommand };
    const end = await new ManagerController(options).run(sweep, values['replace-commands'] === true);
    process.exitCode = exitCode(end);
  });
}

export const COMMAND: Command = {
  run: manager,
  help: HELP,
  options: OPTIONS,
  operands: 'files-and-command-line',
};
