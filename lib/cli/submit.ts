import {
  ArrayRun,
  belowSubmitter,
  commandProblem,
  isJob,
  JobProcess,
  parseArray,
  readStart,
  type Start,
  SweepProgress,
  submitJob,
} from '../jobs/index.ts';
import { shellWords, showValue, usageError } from '../platform/index.ts';
import { waitOption } from './claim-values.ts';
import type { Command } from './command.ts';
import type { Parsed } from './command-line.ts';
import { refuseThrowAway } from './installation.ts';
import { JOB_HOOKS, jobOptions } from './job-options.ts';
import { print } from './output.ts';
import { SUBMIT_GROUPS } from './run-options.ts';
import { checkRun } from './run-request.ts';
import { waitLimits } from './wait-progress.ts';

/** Runs in each process of the job, in one after the other: docs/decisions/042-background-jobs.md */
async function submit(parsed: Parsed<typeof SUBMIT_GROUPS>): Promise<void> {
  const { values, command } = parsed;
  const { array } = values;
  if (array !== undefined) parseArray(array);
  else if (values['like-slurm']) throw usageError('--like-slurm is for the parts of --array');
  if (array !== undefined && waitOption(values, true) === null)
    throw usageError('--no-wait: parts of an array wait for their turn; use --wait=10m, or leave it out');
  const retry = retryOf(values.retry);
  if (values.on !== undefined) {
    checkRun(parsed, 'submit');
    return (await import('./remote.ts')).submitOn(values.on, parsed);
  }
  const start = readStart();
  if (array !== undefined && start.controls !== null) {
    const run = new ArrayRun(start.controls, values['like-slurm'] === true, print);
    process.exit((await run.run(new SweepProgress(start.controls))) ? 0 : 1);
  }
  const job = isJob(start) ? JobProcess.next(start, JOB_HOOKS) : await first(parsed, start);
  // An array waits for jobs before it, but not for GPUs: its parts do.
  if (job.request.array !== undefined) return job.runWithoutGPUs();
  // A job that restarts has waited before: the limit of that wait doesn't count again.
  const wait = waitLimits(job.isRestarted ? {} : values, true);
  const asked = (laterMs: number | null) => checkRun(parsed, 'submit', laterMs);
  await job.run((laterMs) => ({ ...asked(laterMs), words: command.length, retry }), wait);
}

/** Makes the job, of which this process is the first. */
async function first(parsed: Parsed<typeof SUBMIT_GROUPS>, start: Start): Promise<JobProcess> {
  const { values, command } = parsed;
  const { settings, limit } = checkRun(parsed, 'submit');
  refuseThrowAway();
  const submitted = belowSubmitter(start);
  const options = await jobOptions(values);
  const problem = commandProblem(command);
  if (problem !== null) throw usageError(problem.message);
  const waits = waitOption(values, true) !== null;
  const asked = { start: ['submit'], command: shellWords(command), request: settings.request };
  return submitJob({ ...asked, waits, limit, array: values.array }, options, submitted, JOB_HOOKS);
}

/** @throws ERR_INVALID_ARGUMENT */
function retryOf(text = '0'): string | null {
  const [, times, code] = /^(\d{1,4})(?::(\d{1,3}))?$/.exec(text) ?? [];
  if (times !== undefined && (code === undefined || (Number(code) > 0 && Number(code) < 256)))
    return Number(times) === 0 ? null : text;
  throw usageError(
    `--retry: ${showValue(text)} is not a number of times; use 1, 2, …, 0 for none, or 3:75 for exit code 75 only`,
  );
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Runs a command in the background as soon as enough GPUs are free, and prints the number of the job, nothing else. The job goes on after you log out. It keeps the current environment, directory, umask and limits; its standard input is /dev/null, and its output goes to a file that \`gpu-owner logs\` shows. \`gpu-owner jobs\` lists jobs; \`wait\`, \`cancel\` and \`resubmit\` take their numbers or names.`,
  groups: SUBMIT_GROUPS,
  notes: `Exit code: 0 if the job was submitted; 64 if it can never run here, 69 no driver, 73 it can't be kept, 75 --no-wait and not enough GPUs are free. The job's own exit code is that of \`gpu-owner run\`: see \`gpu-owner wait\`.`,
  operands: 'command-line',
  run: submit,
};
