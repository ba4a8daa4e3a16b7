import { GPUOwnerError } from '../errors.ts';
import type { Command, Commands } from './command.ts';
import { findCommand } from './commands.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { EVERY_HELP } from './help.ts';
import { print } from './output.ts';

const HELP = `Usage: gpu-owner exp COMMAND [OPTIONS]

Runs experiments: the tasks of a sweep, each on GPUs of its own, until every one
has its row in the table of results. It can be ended, killed and started again
at any time: what is done stays done.

Commands:
  run         run a sweep to its end: workers, tables of results, progress
  plan        show what that would do, and why
  worker      more workers for a sweep that runs
  manager     give the tasks of a sweep to workers elsewhere; write the tables
  status      show what is done, what runs where, and what has failed
  logs        print the output of a task
  retry       start tasks again that have failed, or others
  pause       start no task any more until resume
  resume      go on after a pause
  cancel      take tasks out; end those that run
  export      write all results to one table

gpu-owner exp COMMAND --help explains each. To begin with:
  gpu-owner exp run --simulate 4 --gpus all --grid lr=0.1,0.01 -- echo {lr}

Options:
${EVERY_HELP}`;

const OPTIONS = {} as const;

/** Every command of the group. */
const COMMANDS: Commands = {
  run: async () => (await import('./exp/run.ts')).COMMAND,
  plan: async () => (await import('./exp/plan.ts')).COMMAND,
  worker: async () => (await import('./exp/worker.ts')).COMMAND,
  manager: async () => (await import('./exp/manager.ts')).COMMAND,
  status: async () => (await import('./exp/status.ts')).COMMAND,
  logs: async () => (await import('./exp/logs.ts')).COMMAND,
  retry: async () => (await import('./exp/retry.ts')).COMMAND,
  pause: async () => (await import('./exp/pause.ts')).COMMAND,
  resume: async () => (await import('./exp/resume.ts')).COMMAND,
  cancel: async () => (await import('./exp/cancel.ts')).COMMAND,
  export: async () => (await import('./exp/export.ts')).COMMAND,
};

async function exp([name, ...args]: readonly string[]): Promise<void> {
  if (name === undefined || name === '--help' || name === '-h') {
    print(HELP);
    if (name === undefined) process.exitCode = EXIT_CODES.ERR_INVALID_ARGUMENT;
    return;
  }
  if (name === 'help') return exp(args[0] === undefined ? ['--help'] : [args[0], '--help']);
  try {
    await (await findCommand(COMMANDS, name, 'gpu-owner exp')).run(args);
  } catch (error) {
    throw isWithoutDirectory(error)
      ? new GPUOwnerError(
          'ERR_INVALID_ARGUMENT',
          'the current directory has been removed: cd to another one, or name the project, --project /A/DIRECTORY',
        )
      : error;
  }
}

/** Whether an error says that the current directory has been removed. */
function isWithoutDirectory(error: unknown): boolean {
  const { code, syscall } = error as NodeJS.ErrnoException;
  return code === 'ENOENT' && syscall === 'uv_cwd';
}

export const COMMAND: Command = { run: exp, help: HELP, options: OPTIONS, commands: COMMANDS };
