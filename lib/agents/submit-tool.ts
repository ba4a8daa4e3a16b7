// The tool that submits a job.
import type { McpServer, ServerContext } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { errorMessage } from '../errors.ts';
import { label } from '../gpus/index.ts';
import { type Job, listJobs } from '../jobs/index.ts';
import { sanitize, sleep } from '../platform/index.ts';
import { answer, orRefuse } from './answer.ts';
import { ask, askGPUs } from './gpu-tools.ts';
import { jobNow, jobOfID } from './job-tools.ts';
import { ANSWER_TIMEOUT_MS, CommandFailure, runOwn } from './own-command.ts';
import {
  describeJob,
  fieldsOf,
  hasEnded,
  holdersOf,
  JobState,
  jobOf,
  jobWord,
  Obstacle,
  quoteOthers,
  requestOf,
  text,
  time,
} from './records.ts';

/** A job that gets GPUs at once has them by then. */
const START_TIMEOUT_MS = 3_000;
const START_POLL_MS = 100;
/** Hosts are asked, and one of them may take its time. */
const REMOTE_TIMEOUT_MS = 50_000;
const FOLLOW = 'Follow it with wait_job and job_log.';
const MAX_WORDS = 10_000;
const MAX_GPUS = 64;
/** The exit code of `find` where too few are free. */
const EX_TEMPFAIL = 75;
/** With another place for jobs or locks, a job would start that the tools can't find. */
const OWN_VARIABLES = /^(HOME|XDG_STATE_HOME|XDG_CONFIG_HOME|GPU_OWNER_.*)$/;

const Wanted = z.strictObject({
  command: z
    .array(text('a word', 100_000))
    .min(1)
    .max(MAX_WORDS)
    .describe('program and arguments, a word each; no shell reads them: for pipes use ["bash", "-c", "…"]'),
  gpus: z.number().int().min(0).max(MAX_GPUS).default(1).describe('how many GPUs'),
  name: text('a short name without blanks, for the other tools', 64).min(1).optional(),
  note: text('what it is for: others see it', 300).optional(),
  for: text('end it after this time, such as 30m or 4h. Others see when the GPUs are expected back', 20)
    .min(1)
    .optional(),
  idle: text('end it if its GPUs did nothing for so long, such as 30m or 1h', 20).min(1).optional(),
  after: z.array(jobWord).max(20).default([]).describe('start when these jobs have ended'),
  afterOk: z.array(jobWord).max(20).default([]).describe('start when these have ended with exit code 0'),
  array: text(
    'submit parts as one job, such as 0-99%4 (at most four at a time); each has its own GPUs, and its number in GPU_OWNER_ARRAY_ID',
    1_000,
  )
    .min(1)
    .optional(),
  memory: text('only so much memory of each GPU, such as 20GiB or 25%; others may have the rest', 20)
    .min(1)
    .optional(),
  minFreeMemory: text('only GPUs with so much free memory, such as 20GiB', 20).min(1).optional(),
  devices: text('only these GPUs, such as 0,2-3; 0:2 is instance 2 of GPU 0', 1_000).min(1).optional(),
  wait: z
    .boolean()
    .default(true)
    .describe('false: refuse if not enough GPUs are free now, and say who has them'),
  urgent: z
    .boolean()
    .default(false)
    .describe('before all others in the queue: only for users whom the administrator has named'),
  preemptible: z
    .boolean()
    .default(false)
    .describe('use GPUs that would be idle: others may end it, and it waits and starts anew then'),
  on: text(
    'run on another machine, over ssh: its name, a,b, or any: that where it starts first. The directory must be there, and gets only these environment variables',
    1_000,
  )
    .min(1)
    .optional(),
  chdir: text('where it runs: an absolute path; default: that of this server').min(1).optional(),
  env: z
    .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/), text('a value', 100_000))
    .default({})
    .describe('variables beside those of this server'),
});

export function addSubmitJob(server: McpServer): void {
  server.registerTool(
    'submit_job',
    {
      title: 'Submit a job',
      description:
        'Runs a command in the background as soon as enough GPUs are free, on GPUs of its own (CUDA_VISIBLE_DEVICES is set). Returns at once. The job goes on when this server ends.',
      inputSchema: Wanted,
      outputSchema: z.object({
        job: JobState,
        waitingFor: z.array(Obstacle).describe('GPUs that others have, with holder and expected end'),
        latestStart: time,
      }),
      annotations: { destructiveHint: false, idempotentHint: false, openWorldHint: false },
    },
    orRefuse((wanted, context) => submit(wanted, clientOf(server, context))),
  );
}

/** Parameters as options of the command: `minFreeMemory` is --min-free-memory. */
function optionsOf(parameters: object): string[] {
  return Object.entries(parameters).flatMap(([name, value]) => {
    const option = `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    if (typeof value === 'boolean') return value ? [option] : [];
    return (value === undefined ? [] : [value].flat()).map((each) => `${option}=${each}`);
  });
}

async function submit(wanted: z.infer<typeof Wanted>, client: string) {
  const own = Object.keys(wanted.env).find((name) => OWN_VARIABLES.test(name));
  if (own !== undefined)
    throw new CommandFailure(
      `env: ${own} changes where gpu-owner keeps jobs and locks. Set it for the program alone: command ["env", "${own}=VALUE", "PROGRAM"]`,
    );
  const { on, chdir, env, command, wait, ...rest } = wanted;
  const note = wanted.note ?? (client === '' ? 'by an agent' : `by ${client}`);
  const running = {
    timeoutMs: on === undefined ? ANSWER_TIMEOUT_MS : REMOTE_TIMEOUT_MS,
    directory: on === undefined ? chdir : undefined,
    env,
  };
  // Values of variables are in no command line.
  const there = on === undefined ? [] : optionsOf({ on, chdir, env: Object.keys(env) });
  const { gpus, memory, minFreeMemory, devices } = wanted;
  if (!wait && gpus > 0 && on === undefined)
    await refuseUnlessFree(optionsOf({ gpus, memory, minFreeMemory, devices }), running);
  const words = optionsOf({ ...rest, note, noWait: !wait });
  const { exitCode, output, errors } = await runOwn(
    ['submit', ...there, ...words, '--', ...command],
    running,
  );
  if (on !== undefined) {
    if (exitCode !== 0) throw new CommandFailure(errors || 'it was not submitted');
    const address = output.trim();
    const job = await jobNow(address).catch((error) => {
      throw new CommandFailure(
        `it is submitted as ${address}: don't submit it again. How it stands isn't known: ${errorMessage(error)}`,
      );
    });
    return answer({ job, waitingFor: [], latestStart: null }, describeJob(job), errors, FOLLOW);
  }
  const id = Number(output);
  if (exitCode !== 0 || !(id > 0)) throw new CommandFailure(errors || 'it was not submitted');
  const begun = await beginningOf(id);
  const job = jobOf(begun);
  // Other users have jobs with this number, too.
  const entry =
    job.state === 'waiting' ? (await ask('queue')).find((each) => each.pid === begun.pid) : undefined;
  const { waitingFor, latestStart } = entry
    ? requestOf(entry, await askGPUs())
    : { waitingFor: [], latestStart: null };
  return answer(
    { job, waitingFor, latestStart },
    describeJob(job),
    ...waitingFor.map((gpu) => `GPU ${label(gpu)}: ${gpu.reason}`),
    hasEnded(job) ? 'Read its output with job_log.' : FOLLOW,
    quoteOthers(waitingFor.flatMap(({ holder, ...gpu }) => (holder ? [{ GPU: label(gpu), ...holder }] : []))),
  );
}

/** @throws CommandFailure with the holders of GPUs, where too few are free */
async function refuseUnlessFree(
  criteria: readonly string[],
  running: Parameters<typeof runOwn>[1],
): Promise<void> {
  const { exitCode, errors } = await runOwn(['find', ...criteria], running);
  if (exitCode === EX_TEMPFAIL) {
    const gpus = await askGPUs();
    throw new CommandFailure(
      [
        'Not enough GPUs are free now:',
        ...gpus.map((gpu) => `GPU ${label(gpu)}: ${gpu.reason ?? 'free'}`),
        'Submit it with wait: true, and it starts when they are free.',
        holdersOf(gpus),
      ].join('\n'),
    );
  }
  if (exitCode !== 0) throw new CommandFailure(errors);
}

/** The name that the agent gives itself; '': none. Versions since 2026-07-28 send it with each request. */
function clientOf(server: McpServer, { mcpReq }: ServerContext): string {
  const sent = fieldsOf(fieldsOf(mcpReq.envelope)['io.modelcontextprotocol/clientInfo']).name;
  return sanitize(sent ?? server.server.getClientVersion()?.name, 40);
}

/** A job that has just been submitted, as soon as it runs, or stands in the queue. */
async function beginningOf(id: number): Promise<Job> {
  for (const begin = Date.now(); ; await sleep(START_POLL_MS)) {
    const listed = listJobs({ user: null, all: true, lockDirectory: undefined });
    const job = listed.find((each) => each.id === id);
    const isKnown =
      job !== undefined && (job.state !== 'waiting' || job.position !== null || job.after.length > 0);
    if (isKnown || Date.now() - begin > START_TIMEOUT_MS) return job ?? jobOfID(id);
  }
}
