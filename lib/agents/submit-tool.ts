// The tool that submits a job.
import type { McpServer, ServerContext } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { errorMessage } from '../errors.ts';
import { sanitize, sleep } from '../platform/index.ts';
import { optional, type QueueEntry, REQUEST, record } from '../shapes/index.ts';
import { addTool } from './answer.ts';
import { askOwn, CommandFailure, type OwnCommandOptions, runOwn } from './own-command.ts';
import { describeJob, hasEnded, jobNow, SHOWN_JOB } from './tools.ts';

/** A job that gets GPUs at once has them by then. */
const START_TIMEOUT_MS = 3_000;
const START_POLL_MS = 100;
/** Hosts are asked, and one of them may take its time. */
const REMOTE_TIMEOUT_MS = 50_000;
const FOLLOW = 'Follow it with wait_job and job_log.';
/** The exit code of `find` where too few are free. */
const EX_TEMPFAIL = 75;
/** With another place for jobs or locks, a job would start that the tools can't find. */
const OWN_VARIABLES = /^(HOME|XDG_STATE_HOME|XDG_CONFIG_HOME|GPU_OWNER_.*)$/;

/** Options of `submit`, as its table has them. */
export type SubmitOptions = Readonly<
  Record<string, { help: string; value?: string; isRepeatable?: boolean }>
>;
/** Options that the tool has, with the help of the table: `min-free-memory` is the parameter minFreeMemory. */
const TAKEN =
  'gpus name note for idle after after-ok retry array memory together min-free-memory devices urgent preemptible on';

const value = z.union([z.string(), z.number()]);
function parameterOf({ help, value: form, isRepeatable = false }: SubmitOptions[string]): z.ZodType {
  if (form === undefined) return z.boolean().default(false).describe(help);
  return (isRepeatable ? z.union([value, z.array(value)]) : value).optional().describe(`${form}: ${help}`);
}

interface Wanted {
  command: string[];
  wait: boolean;
  chdir?: string;
  env: Record<string, string>;
  gpus?: string | number;
  on?: string;
  note?: string;
}
const inputOf = (options: SubmitOptions) =>
  z.strictObject({
    command: z
      .array(z.string())
      .min(1)
      .describe('program and arguments, a word each; no shell reads them: for pipes use ["bash", "-c", "…"]'),
    wait: z
      .boolean()
      .default(true)
      .describe('false: refuse if not enough GPUs are free now, and say who has them'),
    chdir: z.string().optional().describe('where it runs: an absolute path; default: that of this server'),
    env: z
      .record(z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/), z.string())
      .default({})
      .describe('variables beside those of this server; with `on`, the only ones'),
    ...Object.fromEntries(
      TAKEN.split(' ').map((name) => [
        name.replace(/-(.)/g, (_, letter: string) => letter.toUpperCase()),
        parameterOf(options[name] as SubmitOptions[string]),
      ]),
    ),
  });

export function addSubmitTool(server: McpServer, options: SubmitOptions): void {
  addTool(
    server,
    'submit_job',
    {
      description:
        'Runs a command in the background as soon as enough GPUs are free, on GPUs of its own (CUDA_VISIBLE_DEVICES is set). Returns at once. The job goes on when this server ends.',
      input: inputOf(options),
      output: record({ job: SHOWN_JOB, request: optional(REQUEST) }),
      annotations: { destructiveHint: false, idempotentHint: false },
    },
    (wanted, context) => submit(wanted as unknown as Wanted, clientOf(server, context)),
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

async function submit(wanted: Wanted, client: string) {
  const own = Object.keys(wanted.env).find((name) => OWN_VARIABLES.test(name));
  if (own !== undefined)
    throw new CommandFailure(
      `env: ${own} changes where gpu-owner keeps jobs and locks. Set it for the program alone: command ["env", "${own}=VALUE", "PROGRAM"]`,
    );
  const { on, chdir, env, command, wait, ...rest } = wanted;
  const note = wanted.note ?? (client === '' ? 'by an agent' : `by ${client}`);
  const running = on === undefined ? { directory: chdir, env } : { timeoutMs: REMOTE_TIMEOUT_MS, env };
  // Values of variables are in no command line.
  const there = on === undefined ? [] : optionsOf({ on, chdir, env: Object.keys(env) });
  if (!wait && Number(wanted.gpus) !== 0 && on === undefined) await refuseUnlessFree(rest, running);
  const words = optionsOf({ ...rest, note, noWait: !wait });
  const { exitCode, output, errors } = await runOwn(
    ['submit', ...there, ...words, '--', ...command],
    running,
  );
  const address = output.trim();
  if (exitCode !== 0 || address === '') throw new CommandFailure(errors || 'it was not submitted');
  const job = await beginningOf(address).catch((error) => {
    throw new CommandFailure(
      `it is submitted as ${address}: don't submit it again. How it stands isn't known: ${errorMessage(error)}`,
    );
  });
  // Other users have jobs with this number, too.
  const request =
    job.position === null || on !== undefined
      ? undefined
      : (await askOwn<QueueEntry[]>('queue')).find(({ pid }) => pid === job.pid);
  const next = hasEnded(job) ? 'Read its output with job_log.' : FOLLOW;
  return { content: { job, request }, lines: [describeJob(job), on === undefined ? '' : errors, next] };
}

/** @throws CommandFailure where too few are free. The command's own message has text of other users. */
async function refuseUnlessFree(wanted: object, running: OwnCommandOptions): Promise<void> {
  const criteria = ['gpus', 'memory', 'minFreeMemory', 'devices'];
  const asked = Object.fromEntries(Object.entries(wanted).filter(([name]) => criteria.includes(name)));
  const { exitCode, errors } = await runOwn(['find', ...optionsOf(asked)], running);
  if (exitCode === EX_TEMPFAIL)
    throw new CommandFailure(
      'Not enough GPUs are free now: gpu_status shows who has them. With wait: true the job starts when they are free.',
    );
  if (exitCode !== 0) throw new CommandFailure(errors);
}

/** The name that the agent gives itself; '': none. Versions since 2026-07-28 send it with each request. */
function clientOf(server: McpServer, { mcpReq }: ServerContext): string {
  const envelope = mcpReq.envelope as Record<string, { name?: unknown } | undefined> | undefined;
  const sent = envelope?.['io.modelcontextprotocol/clientInfo']?.name;
  return sanitize(sent ?? server.server.getClientVersion()?.name, 40);
}

/** A job that has just been submitted, as soon as it runs, or stands in the queue. */
async function beginningOf(address: string) {
  for (const begin = Date.now(); ; await sleep(START_POLL_MS)) {
    const job = await jobNow(address);
    const isKnown = job.state !== 'waiting' || job.position !== null || job.after.length > 0;
    if (isKnown || job.host !== undefined || Date.now() - begin > START_TIMEOUT_MS) return job;
  }
}
