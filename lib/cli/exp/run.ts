import { GPUOwnerError } from '../../errors.ts';
import { openProject } from '../../experiments/project.ts';
import { openQueue } from '../../experiments/queue/open.ts';
import { findSweepFiles } from '../../experiments/sweep/files.ts';
import { openSweep, type Sweep } from '../../experiments/sweep/sweep.ts';
import { onWarning } from '../../warnings.ts';
import { type Parsed, parse } from '../arguments.ts';
import type { Command } from '../command.ts';
import { COMMON_HELP, CRITERIA_HELP } from '../help.ts';
import { print } from '../output.ts';
import { Ending } from './ending.ts';
import { projectOf, QUEUE, QUEUE_HELP, urlOf } from './queue-options.ts';
import { openScreen } from './screen.ts';
import { Session } from './session.ts';
import { SWEEP, SWEEP_HELP, sweepSource } from './sweep-options.ts';
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
  'replace-commands': { type: 'boolean' },
} as const;

async function run(args: readonly string[]): Promise<void> {
  const parsed = parse(args, OPTIONS, 'behind-dashes');
  const { values } = parsed;
  if (values.help) return print(HELP);
  const directory = projectOf(values);
  const { settings, workers, grace } = await workerSettings(values, null);
  const sweep = await sweepOf(parsed, directory);
  const queue = await openQueue(urlOf(values), directory, { create: sweep !== null });
  if (queue === null) throw noSweep(directory);
  const project = openProject(directory);
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

/** null: none is asked for, and the project has none: then what its queue has is to be done. */
async function sweepOf(parsed: Parsed, project: string): Promise<Sweep | null> {
  const source = sweepSource(parsed, project);
  const asked = source.files?.length || source.grid?.length || source.commands !== undefined;
  if (!asked && parsed.command.length === 0 && !hasSweepFiles(project)) return null;
  return openSweep(source);
}

function hasSweepFiles(project: string): boolean {
  try {
    return findSweepFiles(project).length > 0;
  } catch {
    return false;
  }
}

/** As it is said where files are looked for. */
function noSweep(project: string): GPUOwnerError {
  try {
    findSweepFiles(project);
  } catch (error) {
    if (error instanceof GPUOwnerError) return error;
  }
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    'what shall be run? Name a sweep file, or use --grid or --commands',
  );
}
