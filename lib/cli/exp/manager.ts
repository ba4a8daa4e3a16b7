import { onWarning, shellWords } from '../../platform/index.ts';
import { loadRunning } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import type { OptionGroup, Parsed } from '../command-line.ts';
import { PROTOCOL_GROUP, protocolSettings } from './protocol-options.ts';
import { locationOf, QUEUE, sameQueue } from './queue-options.ts';
import { plainScreen, screenReporter } from './screen.ts';
import { exitCode, summary } from './summary.ts';
import { SWEEP_GROUP, sweepSource } from './sweep-options.ts';
import { GPUS_PER_TASK, gpusPerTask } from './worker-options.ts';

const GROUPS = [
  {
    options: {
      stay: { help: 'keep running after the last task has ended, until a signal comes' },
      ...GPUS_PER_TASK,
      ...QUEUE,
    },
  },
  PROTOCOL_GROUP,
  SWEEP_GROUP,
] as const satisfies readonly OptionGroup[];

async function manager(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { openSweepIfAny, SweepRun, withExperiment } = await loadRunning();
  const { values } = parsed;
  const location = locationOf(values);
  const protocol = await protocolSettings(values);
  const stay = values.stay === true;
  const sweep = await openSweepIfAny(await sweepSource(parsed, location.directory));
  // Workers that ask over TCP know themselves what to run.
  const create = protocol.endpoints.length > 0 || sweep === null || sweep.commandless === null;
  const resumeCommand = shellWords(['gpu-owner', 'exp', 'resume', ...sameQueue(values)]);
  await withExperiment(location, sweep, { create, mayBeDone: stay }, async (experiment) => {
    const screen = plainScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    const reporter = screenReporter(screen, (end) => summary(end, values, false));
    const options = {
      ...experiment,
      own: null,
      protocol,
      stay,
      gpusPerTask: gpusPerTask(values),
      reporter,
      resumeCommand,
    };
    process.exitCode = exitCode(await new SweepRun(options).run(sweep));
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]',
  about: `Adds the tasks of a sweep, gives them to workers, and writes the tables of results. It needs no GPU and runs no task itself. Workers are \`gpu-owner exp worker\`, and programs that ask for tasks over TCP. You can kill and restart it at any time. A second manager waits until the first one is gone. It ends when every task has ended.`,
  groups: GROUPS,
  notes: `Exit code: 0 all tasks are completed; 1 some failed or were cancelled; 129, 130, 143 ended by a signal with work left; 64 bad usage, or the port is in use; 69 no queue, or the queue was removed; 78 a mistake in a sweep file.`,
  operands: 'files-and-command-line',
  run: manager,
};
