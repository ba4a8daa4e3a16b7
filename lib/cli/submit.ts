import { GPUOwnerError } from '../errors.ts';
import {
  ArrayRun,
  becomeKeeper,
  belowSubmitter,
  isJob,
  JobProcess,
  JobStore,
  parseArray,
  readStart,
  type Start,
  SweepProgress,
  submitCommand,
} from '../jobs/index.ts';
import { showValue } from '../platform/index.ts';
import { waitOption } from './claim-options.ts';
import type { Command } from './command.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { refuseThrowAway } from './installation.ts';
import { announce, becomeSweepJob, jobOptions, prepareJob } from './job-options.ts';
import { type Parsed, usage } from './options.ts';
import { print } from './output.ts';
import { checkRun, type RunRequest, SUBMIT_GROUPS } from './run-request.ts';
import { waitLimits } from './wait-progress.ts';

async function submit(parsed: Parsed<typeof SUBMIT_GROUPS>): Promise<void> {
  const { values } = parsed;
  const { array } = values;
  if (array !== undefined) parseArray(array);
  else if (values['like-slurm']) throw usage('--like-slurm is for the parts of --array');
  if (array !== undefined && waitOption(values, true) === null)
    throw usage('--no-wait: parts of an array wait for their turn; use --wait=10m, or leave it out');
  retriesOf(values.retry);
  if (values.on !== undefined) {
    checkRun(parsed, 'submit');
    return (await import('./remote.ts')).submitOn(values.on, parsed);
  }
  const start = readStart(values['as-job']);
  if (array !== undefined && start.controls !== null)
    return runParts(new SweepProgress(start.controls), values['like-slurm'] === true);
  if (!isJob(start)) return submitFirst(parsed, start);
  const job = JobProcess.next(start, announce);
  if (job.request.array !== undefined) return becomeSweepJob(job);
  await runJob(job, parsed, checkRun(parsed, 'submit'));
}

/** Makes the job, and becomes its process. */
async function submitFirst(parsed: Parsed<typeof SUBMIT_GROUPS>, first: Start): Promise<void> {
  const { values, command } = parsed;
  const { array } = values;
  const request = checkRun(parsed, 'submit');
  refuseThrowAway();
  const waits = waitOption(values, true) !== null;
  const start = belowSubmitter(first);
  const asked = await jobOptions(values);
  const job = await submitCommand(
    request.settings,
    command,
    asked,
    { limit: request.limit, waits, array },
    start,
    announce,
  );
  // An array waits for jobs before it, but not for GPUs: its parts do.
  await (array === undefined ? runJob(job, parsed, request) : becomeSweepJob(job));
}

/** The controller of an array: ends this process with 1 if a part failed. */
async function runParts(background: SweepProgress, isLikeSlurm: boolean): Promise<void> {
  const { id } = background;
  const array = new ArrayRun(JobStore.open(), id, print);
  const variables = (index: number) => ({
    GPU_OWNER_ARRAY_ID: index,
    ...(isLikeSlurm ? slurmVariables(id, index, array.ids) : {}),
  });
  process.exit((await array.run(background, variables)) ? 0 : 1);
}

function slurmVariables(job: number, index: number, ids: readonly number[]): Record<string, number> {
  const [first = 0, second = first + 1] = ids;
  return {
    SLURM_ARRAY_JOB_ID: job,
    SLURM_ARRAY_TASK_ID: index,
    SLURM_ARRAY_TASK_COUNT: ids.length,
    SLURM_ARRAY_TASK_MIN: first,
    SLURM_ARRAY_TASK_MAX: ids.at(-1) ?? first,
    SLURM_ARRAY_TASK_STEP: second - first,
  };
}

/** @throws ERR_INVALID_ARGUMENT */
function retriesOf(text = '0'): number {
  if (/^\d{1,4}$/.test(text)) return Number(text);
  throw usage(`--retry: ${showValue(text)} is not a number of times; use 1, 2, …, or 0 for none`);
}

/** The job's own process, in the background. */
async function runJob(
  job: JobProcess,
  { values, command }: Parsed<typeof SUBMIT_GROUPS>,
  request: RunRequest,
): Promise<void> {
  const { settings, limit } = request;
  try {
    await prepareJob(job);
    // A job that restarts has waited before: the limit of that wait doesn't count again.
    const wait = waitLimits(job.isRestarted ? {} : values, true);
    const claim = await job.claim(settings, wait, limit).finally(() => wait?.end());
    becomeKeeper(claim, {
      ...request,
      words: command.length,
      start: job.start,
      isRequeued: true,
      retries: retriesOf(values.retry),
      job,
    });
  } catch (error) {
    if (error instanceof GPUOwnerError) {
      const hasMoved = error.code === 'ERR_ABORTED';
      job.fail(EXIT_CODES[error.code], error.message, hasMoved ? null : error.code);
    }
    throw error;
  }
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Runs a command in the background as soon as enough GPUs are free, and prints the number of the job, nothing else. The job goes on after you log out. It keeps the current environment, directory, umask and limits; its standard input is /dev/null, and its output goes to a file that \`gpu-owner logs\` shows. \`gpu-owner jobs\` lists jobs; \`wait\`, \`cancel\` and \`resubmit\` take their numbers or names.`,
  groups: SUBMIT_GROUPS,
  notes: `Exit code: 0 if the job was submitted; 64 if it can never run here, 69 no driver, 73 it can't be kept, 75 --no-wait and not enough GPUs are free. The job's own exit code is that of \`gpu-owner run\`: see \`gpu-owner wait\`.`,
  operands: 'command-line',
  run: submit,
};
