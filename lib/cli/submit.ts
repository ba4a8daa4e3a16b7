import { GPUOwnerError } from '../errors.ts';
import { becomeKeeper, JobProcess, submitJob } from '../jobs/index.ts';
import type { Command } from './command.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { refuseThrowAway } from './installation.ts';
import type { Parsed } from './options.ts';
import { print, say } from './output.ts';
import { checkRun, RUN_GROUPS, type RunRequest } from './run.ts';
import { waitLimits } from './wait-progress.ts';

async function submit(parsed: Parsed): Promise<void> {
  const { values, command } = parsed;
  const request = checkRun(parsed, 'submit');
  const jobDescriptors = values['as-job'];
  if (typeof jobDescriptors === 'string') return runJob(new JobProcess(jobDescriptors), parsed, request);
  refuseThrowAway();
  const text = (name: string) => (values[name] === undefined ? undefined : String(values[name]));
  const list = (name: string) => (values[name] as string[] | undefined) ?? [];
  const id = await submitJob(
    request.settings,
    command,
    {
      name: text('name'),
      note: text('note'),
      after: list('after'),
      afterOk: list('after-ok'),
      output: text('output'),
      notify: values.notify === true ? '' : text('notify'),
    },
    request.limit,
  );
  print(String(id));
}

/** The job's own process, in the background. */
async function runJob(job: JobProcess, { values, command }: Parsed, { settings, limit }: RunRequest) {
  const { obstacle } = job;
  if (obstacle !== null) {
    job.fail(CANCELLED, obstacle, true);
    say(`cancelled: ${obstacle}`);
    process.exit(CANCELLED);
  }
  settings.request.about = job.about;
  try {
    const wait = waitLimits(values, true);
    const claim = await job.claim(settings, wait, limit).finally(() => wait?.end());
    becomeKeeper(claim, command.length, limit, job);
  } catch (error) {
    if (error instanceof GPUOwnerError) job.fail(EXIT_CODES[error.code], error.message);
    throw error;
  }
}

/** As if SIGTERM had ended it. */
const CANCELLED = 143;

const [options, ...criteria] = RUN_GROUPS;

export const COMMAND: Command = {
  usage: '[OPTIONS] [--] COMMAND [ARGUMENTS]',
  about: `Runs a command in the background as soon as enough GPUs are free, and prints the number of the job, nothing else. The job goes on after you log out. It has the arguments, environment, directory, umask and limits of now; standard input is /dev/null, and its output goes to a file that \`gpu-owner logs\` shows. \`gpu-owner jobs\` lists jobs; \`wait\`, \`cancel\` and \`resubmit\` take their numbers or names.`,
  groups: [
    {
      options: {
        ...options?.options,
        after: {
          value: 'JOB',
          isRepeatable: true,
          help: 'start when that job has ended, however it did',
          candidates: 'job',
        },
        'after-ok': {
          value: 'JOB',
          isRepeatable: true,
          help: 'start when that job has ended with exit code 0, otherwise never',
          candidates: 'job',
        },
        output: {
          value: 'FILE',
          help: "append its output to FILE; %j is the job's number, %n its name",
          candidates: 'file',
        },
        notify: {
          value: 'NAME',
          isValueOptional: true,
          help: 'tell you of its start, end and cancellation, as the configuration says',
        },
        'as-job': { value: 'DESCRIPTORS', help: 'be the job; for gpu-owner itself', isHidden: true },
      },
    },
    ...criteria,
  ],
  notes: `Exit code: 0 if the job was submitted; 64 if it can never run here, 69 no driver, 73 it can't be kept. Its own is that of \`gpu-owner run\`: see \`gpu-owner wait\`.`,
  operands: 'command-line',
  run: submit,
};
