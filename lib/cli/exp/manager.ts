import { openQueue } from '../../experiments/index.ts';
import { onWarning } from '../../platform/index.ts';
import { parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print } from '../output.ts';
import { noSweep, sweepOf } from './asked-sweep.ts';
import { Ending } from './ending.ts';
import { ManagerSession } from './manager-session.ts';
import { METRICS, METRICS_HELP } from './metrics-options.ts';
import { PROTOCOL, PROTOCOL_HELP, protocolSettings } from './protocol-options.ts';
import { openWorkplace, projectOf, QUEUE, QUEUE_HELP, urlOf } from './queue-options.ts';
import { plainScreen } from './screen.ts';
import { SWEEP, SWEEP_HELP } from './sweep-options.ts';

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
  const directory = projectOf(values);
  const protocol = await protocolSettings(values);
  const stay = values.stay === true;
  const sweep = await sweepOf(parsed, directory);
  // Workers that ask over TCP know themselves what to run.
  const create = protocol.endpoints.length > 0 || sweep === null || sweep.commandless === null;
  const queue = await openQueue(urlOf(values), directory, { create });
  if (queue === null) throw sweep?.commandless ?? noSweep(directory);
  const project = openWorkplace(values);
  const ending = new Ending();
  try {
    const { active, pending, completed } = await queue.counts();
    if (sweep === null && !stay && active + pending + completed === 0) throw noSweep(directory);
    const screen = plainScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    const session = new ManagerSession({ queue, project, protocol, stay, screen, ending, values });
    process.exitCode = await session.run(sweep, values['replace-commands'] === true);
  } finally {
    await queue.close();
    ending.close();
  }
}

export const COMMAND: Command = {
  run: manager,
  help: HELP,
  options: OPTIONS,
  operands: 'files-and-command-line',
};
