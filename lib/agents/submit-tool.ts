// The tool that submits a job.
import type { McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { errorMessage } from '../errors.ts';
import { record } from '../shapes/index.ts';
import { addTool } from './answer.ts';
import { CommandFailure, runOwn } from './own-command.ts';
import { describeJob, hasEnded, jobNow, SHOWN_JOB } from './tools.ts';

/** Hosts are asked, and one of them may take its time. */
const REMOTE_TIMEOUT_MS = 50_000;
/** The exit code where too few are free. */
const EX_TEMPFAIL = 75;
const NOT_NOW =
  'Not enough GPUs are free now: gpu_status shows who has them. With wait: true the job starts when they are free.';
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
      output: record({ job: SHOWN_JOB }),
      annotations: { destructiveHint: false, idempotentHint: false },
    },
    (wanted) => submit(wanted as unknown as Wanted),
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

async function submit({ wait, chdir, env, command, ...wanted }: Wanted) {
  const own = Object.keys(env).find((name) => OWN_VARIABLES.test(name));
  if (own !== undefined)
    throw new CommandFailure(
      `env: ${own} changes where gpu-owner keeps jobs and locks. Set it for the program alone: command ["env", "${own}=VALUE", "PROGRAM"]`,
    );
  const isHere = wanted.on === undefined;
  const running = isHere ? { directory: chdir, env } : { timeoutMs: REMOTE_TIMEOUT_MS, env };
  // Values of variables are in no command line.
  const there = isHere ? {} : { chdir, env: Object.keys(env) };
  const words = optionsOf({ note: 'by an agent', ...wanted, ...there, noWait: !wait });
  const { exitCode, output, errors } = await runOwn(['submit', ...words, '--', ...command], running);
  const address = output.trim();
  // The command's own message says of each GPU who has it, with text of other users.
  if (exitCode === EX_TEMPFAIL) throw new CommandFailure(NOT_NOW);
  if (exitCode !== 0 || address === '')
    throw new CommandFailure(errors.replace(/:(?:\s+GPU \d[^\n]*)+/g, '') || 'it was not submitted');
  const job = await jobNow(address).catch((error) => {
    throw new CommandFailure(
      `it is submitted as ${address}: don't submit it again. How it stands isn't known: ${errorMessage(error)}`,
    );
  });
  const next = hasEnded(job) ? 'Read its output with job_log.' : 'Follow it with wait_job and job_log.';
  return { content: { job }, lines: [describeJob(job), isHere ? '' : errors, next] };
}
