import {
  belowSubmitter,
  isJob,
  JobProcess,
  readStart,
  type Start,
  SweepProgress,
  submitJob,
} from '../../jobs/index.ts';
import { onWarning, shellWords, usageError } from '../../platform/index.ts';
import { loadRunning, type WorkerRequest } from '../../sweeps/index.ts';
import { WORKER_CRITERIA_GROUP } from '../claim-options.ts';
import type { Command } from '../command.ts';
import { advanced, type OptionGroup, type Parsed, SIMULATE } from '../command-line.ts';
import { toArguments } from '../hosts.ts';
import { refuseThrowAway } from '../installation.ts';
import { ABOUT, JOB, JOB_HOOKS, jobOptions } from '../job-options.ts';
import { dryRun } from './dry-run.ts';
import { locationOf, QUEUE } from './queue-options.ts';
import { openScreen, screenReporter } from './screen.ts';
import { exitCode, summary } from './summary.ts';
import { SWEEP_GROUP, sweepSource } from './sweep-options.ts';
import { workerOptions, workerRequest } from './worker-options.ts';

const GROUPS = [
  {
    options: {
      ...workerOptions('use N GPUs in all, or on each host (no default)'),
      on: {
        value: 'HOSTS|any',
        help: 'run the tasks on other machines, over ssh: names as in `ssh NAME` (a,b:/DIR; DIR is the project there), or any: all that the configuration lists',
      },
      env: {
        value: 'NAME[=VALUE]',
        isRepeatable: true,
        help: "with --on, carry an environment variable over; NAME can be a pattern ('WANDB_*')",
        isAdvanced: true,
      },
      'dry-run': {
        help: 'print how many tasks would run, and what is done already; change nothing',
      },
      json: {
        help: 'with --dry-run, print { tasks, size, counts, phases }',
        isAdvanced: true,
      },
      detach: { help: 'run the sweep as a job in the background, and print its number' },
      ...advanced({ ...ABOUT, ...JOB }),
      ...QUEUE,
      ...SIMULATE,
    },
  },
  SWEEP_GROUP,
  WORKER_CRITERIA_GROUP,
] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  if (values['dry-run'] === true) {
    const location = locationOf(values);
    return dryRun(location, await sweepSource(parsed, location.directory), values.json === true);
  }
  if (values.json === true)
    throw usageError('--json belongs to --dry-run; of a sweep that runs: exp status --json');
  refuseThrowAway();
  const start = readStart();
  if (isJob(start)) return JobProcess.next(start, JOB_HOOKS).runWithoutGPUs();
  const background = start.controls === null ? null : new SweepProgress(start.controls);
  const detaches = values.detach === true && background === null;
  if (detaches && values.commands === '-')
    throw usageError(
      "--detach: a sweep in the background can't read standard input; write the commands to a file, and name it after --commands",
    );
  const {
    checkPrograms,
    hostRequest,
    notingReporter,
    openSweepIfAny,
    SweepRun,
    settingsFor,
    withExperiment,
  } = await loadRunning();
  // Before anything is read: this program starts again.
  const detached = detaches ? belowSubmitter(start) : null;
  const location = locationOf(values);
  const request = workerRequest(values, null);
  if (values.on === undefined && values.env !== undefined)
    throw usageError('--env belongs to --on: here commands have your environment');
  const words = toArguments(values, (name) => !OWN.includes(name));
  const hosts = values.on === undefined ? null : hostRequest(values.on, values, words, location);
  if (hosts === null) await settingsFor(request); // before anything is changed
  const sweep = await openSweepIfAny(await sweepSource(parsed, location.directory));
  if (sweep !== null && hosts === null) checkPrograms(sweep, location.directory);
  if (detached !== null) return detach(parsed, request, hosts !== null, detached);
  const kind = { create: sweep?.commandless === null, mayBeDone: false, isBackground: background !== null };
  await withExperiment(location, sweep, kind, async (experiment) => {
    const screen = openScreen();
    onWarning((message) => screen.line(`warning: ${message}`));
    try {
      const shown = screenReporter(screen, (end) => summary(end, values, true));
      const reporter = background === null ? shown : notingReporter(shown, background);
      const options = { ...experiment, own: { request, hosts }, gpusPerTask: request.gpusPerTask, reporter };
      process.exitCode = exitCode(await new SweepRun(options).run(sweep));
    } finally {
      screen.end();
    }
  });
}

/** Options that concern this process, and not the workers on other machines. */
const OWN = ['on', 'env', 'detach', ...Object.keys({ ...ABOUT, ...JOB, ...QUEUE, ...SWEEP_GROUP.options })];

/** Runs the sweep as a job in the background. */
async function detach(
  { values, args }: Parsed<typeof GROUPS>,
  { settings: { request } }: WorkerRequest,
  isElsewhere: boolean,
  start: Start,
): Promise<void> {
  const command = shellWords(['exp', 'run', ...args.filter((word) => word !== '--detach')]);
  const claims = isElsewhere ? ('elsewhere' as const) : ('tasks' as const);
  const submission = { start: ['exp', 'run'], command, request, claims, waits: false, limit: null };
  const job = await submitJob(submission, await jobOptions(values), start, JOB_HOOKS);
  await job.runWithoutGPUs();
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [FILE ...] [-- COMMAND [ARG ...]]',
  about: `Runs a sweep to its end: every task on its own GPUs, its output in OUTPUT_DIR/worker_*.log, its result in OUTPUT_DIR/final_results.csv. Tasks that have a row there are completed. Started again, it continues where it stopped, however it ended. Without a sweep, it runs the remaining tasks of the project.

Ctrl-C lets running tasks finish; a second Ctrl-C stops and requeues them.`,
  groups: GROUPS,
  notes: `Exit code: 0 all tasks are completed; 1 some failed or were cancelled, or it has paused after failures; 129, 130, 143 ended by a signal with work left; 64 bad usage, 69 no driver or no queue, 78 a mistake in a sweep file.`,
  operands: 'files-and-command-line',
  run,
};
