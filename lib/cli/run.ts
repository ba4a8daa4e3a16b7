import {
  becomeKeeper,
  type ContinuedWait,
  claimForJob,
  claimUntilInputCloses,
  commandProblem,
  continueWait,
  HeldPlace,
  isRestarted,
  JobStore,
  warnOfOwnDevices,
} from '../jobs/index.ts';
import { native } from '../native.ts';
import { type Command, optionsOf } from './command.ts';
import { withExitCode } from './exit-codes.ts';
import { refuseThrowAway } from './installation.ts';
import { type AnyValues, type OptionGroup, type Parsed, parse, usage } from './options.ts';
import { print, say } from './output.ts';
import { checkRun, RUN_GROUPS, type RunRequest, SUBMIT_GROUPS } from './run-request.ts';
import { waitLimits } from './wait-progress.ts';

const [options, ...criteria] = RUN_GROUPS;
const GROUPS = [
  {
    options: {
      ...options.options,
      requeue: {
        help: 'with --preemptible: wait for GPUs again afterwards, and start the command anew',
        isAdvanced: true,
      },
      'over-ssh': {
        value: 'TEXT',
        isValueOptional: true,
        help: 'hang up with the parent, and print TEXT when there are GPUs; for --on',
        isHidden: true,
      },
      'in-place-of': {
        value: 'JOB',
        help: 'take the GPUs of a job that holds them for this; for --on any',
        isHidden: true,
      },
      'until-input-closes': {
        help: 'stop waiting when standard input is closed; for the self-test',
        isHidden: true,
      },
    },
  },
  ...criteria,
] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  const continued = continueWait();
  if (values.requeue && !values.preemptible) throw usage('--requeue needs --preemptible');
  const place = placeOf(values, continued);
  const request = checkRun(
    place === null ? parsed : { ...parsed, values: { ...values, devices: [...place.uuids] } },
    'run',
  );
  if (values.on !== undefined) return (await import('./remote.ts')).runOn(values.on, parsed, request);
  await runHere(parsed, request, continued, place).catch((error: unknown) => {
    throw withExitCode(error, request.exitCodes);
  });
}

/** Options that decide on a request's place in the queue, and for how long it has its GPUs. */
const RANK = ['gpus', 'memory', 'for', 'preemptible', 'urgent'];

/** The job in whose place the command runs; null: none. @throws ERR_GPU_UNAVAILABLE, ERR_INVALID_ARGUMENT */
function placeOf(values: AnyValues, { received }: ContinuedWait): HeldPlace | null {
  const job = values['in-place-of'];
  if (job === undefined || isRestarted()) return null;
  const place = new HeldPlace(JobStore.open(), String(job), received !== null);
  const asked: AnyValues = parse(place.words, optionsOf(SUBMIT_GROUPS), 'word').values;
  const isAsAsked = RANK.every((name) => asked[name] === values[name]);
  if (isAsAsked && place.uuids.length === Number(values.gpus ?? 1)) return place;
  throw usage('--in-place-of is for gpu-owner itself');
}

async function runHere(
  { values, command }: Parsed<typeof GROUPS>,
  { settings, limit, idle, preemption }: RunRequest,
  continued: ContinuedWait,
  place: HeldPlace | null,
): Promise<void> {
  const overSSH = values['over-ssh'];
  if (overSSH !== undefined) native().processHangUpWithParent();
  refuseThrowAway();
  const problem = commandProblem(command);
  if (problem !== null) {
    say(problem.message);
    process.exit(problem.exitCode);
  }
  warnOfOwnDevices(command);
  const wait = waitLimits(isRestarted() ? {} : values, true);
  const claiming = values['until-input-closes']
    ? claimUntilInputCloses(settings, wait)
    : place === null
      ? claimForJob(settings, wait, continued)
      : claimForJob(
          place.first(settings),
          { ...wait, maxWait: null, onWaiting: () => void place.end() },
          continued,
        );
  const claim = await claiming.finally(async () => {
    wait?.end();
    await place?.remove();
  });
  if (typeof overSSH === 'string' && !isRestarted()) print(`\n${overSSH}`);
  const again = { restart: { words: [], own: process.argv.length - 1 }, lock: null };
  becomeKeeper(claim, command.length, limit, null, preemption, values.requeue ? again : null, idle);
}

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Waits until enough GPUs are free, claims them, sets CUDA_VISIBLE_DEVICES, and runs the command. The GPUs stay claimed until the command and all its descendants have ended. They are released however these end.`,
  groups: GROUPS,
  notes: `Exit code: the command's own; 128 + N if signal N ended it; 64 bad usage, 69 no driver, 75 not available, 124 time limit, 143 preempted, 126 the command can't be run, 127 it isn't found.`,
  operands: 'command-line',
  run,
};
