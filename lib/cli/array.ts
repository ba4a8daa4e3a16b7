// Arrays of jobs: a sweep in the background, whose tasks are the parts.
import { type ClaimPurpose, checkOptions, checkPossible } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { type RunEnd, type Sweep, SweepRun } from '../experiments/index.ts';
import {
  arrayOf,
  becomeSubmitter,
  checkCommand,
  JobProcess,
  JobStore,
  parseArray,
  Submitter,
  SweepProgress,
  submitJob,
} from '../jobs/index.ts';
import { listWords, nearest, networkFileSystem, sanitize, shellWords } from '../platform/index.ts';
import { claimOptions, NAMES } from './claim-options.ts';
import { runSweep } from './exp/run.ts';
import { refuseThrowAway } from './installation.ts';
import { announce, becomeSweepJob, jobOptions } from './job-options.ts';
import { type Parsed, usage } from './options.ts';
import { checkRun, type SUBMIT_GROUPS } from './run-request.ts';

type Submitted = Parsed<typeof SUBMIT_GROUPS>;

/** Options of jobs that have no meaning for many of them. */
const REFUSED = [
  'no-wait',
  'wait',
  'max-wait',
  'signal',
  'grace',
  'idle',
  'conflict-exit-code',
  'on',
] as const;
/** The words of this program before those of the user: submit --as-job DESCRIPTORS. */
const OWN_WORDS = 3;
const CONTROLLER = ['submit'];
const MAX_TITLE_LENGTH = 1_000;
/** Between SIGTERM and SIGKILL for a part whose time is over, in seconds. */
const KILL_AFTER_S = 10;

/** `submit --array`: makes the job, or is its controller. */
export async function submitArray(parsed: Submitted): Promise<void> {
  const background = SweepProgress.take();
  if (background !== null) return runParts(parsed, background);
  const { values, command } = parsed;
  const found = Submitter.find();
  if (values['as-job'] !== undefined)
    return becomeSweepJob(JobProcess.next(values['as-job'], found, announce), OWN_WORDS, CONTROLLER);
  const refused = REFUSED.find((name) => values[name] !== undefined);
  if (refused !== undefined) {
    throw usage(
      `--${refused} is for a single job: parts of an array run here, wait for GPUs, and end as tasks of a sweep do; leave it out`,
    );
  }
  const { array = '' } = values;
  parseArray(array);
  refuseThrowAway();
  const { settings } = checkRun(parsed, 'submit');
  const submitter = found ?? becomeSubmitter();
  checkCommand(command);
  const { request } = settings;
  if (request.count === 0) throw usage('--gpus: a part of an array needs a GPU; use 1, 2, …');
  const { lockDirectory, configuredDirectory } = request;
  const submission = {
    start: ['submit'],
    command: sanitize(shellWords(command), MAX_TITLE_LENGTH),
    count: 0,
    waits: false,
    limit: null,
    array,
    lockDirectory,
    configuredDirectory,
  };
  refuseNetworkFileSystem();
  const check = () => checkPossible(request);
  const job = await submitJob(submission, await jobOptions(values), check, submitter, announce);
  await becomeSweepJob(job, submission.start.length, CONTROLLER);
}

/** The queue of the parts stands where jobs are kept. @throws ERR_JOBS where SQLite's locks aren't safe there */
function refuseNetworkFileSystem(): void {
  const { path } = JobStore.open();
  const system = networkFileSystem(nearest(path));
  if (system === undefined) return;
  throw new GPUOwnerError(
    'ERR_JOBS',
    `--array: jobs are kept in ${sanitize(path, 300)}, on a network file system (${system}), and the queue of an array needs a local disk. Write 'export XDG_STATE_HOME=/a/local/directory' into ~/.profile; jobs are kept there from then on`,
  );
}

/** The controller: runs the parts of its job. */
async function runParts(parsed: Submitted, background: SweepProgress): Promise<void> {
  const { values, command } = parsed;
  const { id } = background;
  const store = JobStore.open();
  const request = store.read(id)?.request;
  const array = request === undefined ? null : arrayOf(request);
  if (request === undefined || array === null) throw usage(`job ${id} can't be read any longer`);
  const { name, note } = request;
  const { limit, settings } = checkRun(parsed, 'submit');
  const purpose: ClaimPurpose = {
    command: shellWords(command),
    about: { job: id, ...(name === null ? {} : { name }), ...(note === null ? {} : { note }) },
    ...(settings.request.class === 'preemptible' ? { class: 'preemptible' } : {}),
  };
  const before = limit === null ? [] : ['timeout', `--kill-after=${KILL_AFTER_S}`, String(limit.ms / 1_000)];
  const words = (part: number) => [
    'env',
    ...assignments({
      GPU_OWNER_ARRAY_ID: part,
      ...(values['like-slurm'] ? likeSlurm(id, part, array.ids) : {}),
    }),
    ...before,
    ...command,
  ];
  const sweep = sweepOf(id, array.ids, words);
  const claim = checkOptions(claimOptions(values), [], NAMES, purpose);
  const workers = {
    settings: claim,
    needs: { gpus: claim.request.count },
    gpus: 'all',
    byDefault: null,
    ...(array.atOnce === null ? {} : { mostWorkers: array.atOnce }),
    grace: null,
    watched: false,
    areJobs: true,
  };
  const workingDirectory = process.cwd();
  await runSweep({ directory: store.directoryOf(id), url: null }, sweep, background, {
    start: ({ project, ...experiment }, reporter) =>
      new SweepRun({
        ...experiment,
        project: {
          ...project,
          workingDirectory,
          outputOf: ({ name: part }) => store.outputOfPart(request, Number(part.split('_')[1])),
        },
        own: { request: workers, hosts: null },
        needs: workers.needs,
        metrics: null,
        reporter,
      }).run(sweep),
    summary,
  });
}

function assignments(variables: Readonly<Record<string, number>>): string[] {
  return Object.entries(variables).map(([name, value]) => `${name}=${value}`);
}

function likeSlurm(job: number, part: number, ids: readonly number[]): Record<string, number> {
  const [first = 0, second = first + 1] = ids;
  return {
    SLURM_ARRAY_JOB_ID: job,
    SLURM_ARRAY_TASK_ID: part,
    SLURM_ARRAY_TASK_COUNT: ids.length,
    SLURM_ARRAY_TASK_MIN: first,
    SLURM_ARRAY_TASK_MAX: ids.at(-1) ?? first,
    SLURM_ARRAY_TASK_STEP: second - first,
  };
}

const PHASE = 'parts';

function sweepOf(job: number, ids: readonly number[], words: (part: number) => readonly string[]): Sweep {
  function* tasks() {
    for (const part of ids) {
      yield {
        phase: PHASE,
        name: `${job}_${part}`,
        outputDirectory: PHASE,
        parameters: { array_id: part },
        command: { words: words(part) },
      };
    }
  }
  const phase = { name: PHASE, size: ids.length, factors: [{ name: 'array_id', count: ids.length }], tasks };
  return {
    files: [],
    phases: [phase],
    size: ids.length,
    commandless: null,
    search: null,
    comparison: null,
    unnamedGrid: null,
    tasks,
    samples: tasks,
  };
}

const MAX_NAMED = 10;

function summary({ progress, failures }: RunEnd): string[] {
  const { counts, total } = progress;
  const left = counts.pending + counts.active;
  const lines = [
    `${total} parts: ${counts.completed} completed, ${counts.failed} failed, ${counts.cancelled} cancelled${left > 0 ? `, ${left} not run` : ''}`,
  ];
  if (failures.length > 0) {
    const named = failures.slice(0, MAX_NAMED).map(({ task }) => sanitize(task.name, 40));
    const more = failures.length - named.length;
    lines.push(
      `failed: ${listWords(more > 0 ? [...named, `${more} more`] : named)}; to run them again: gpu-owner resubmit failed`,
    );
  }
  return lines;
}
