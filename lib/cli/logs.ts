import { JobOutput, JobStore, jobAt, resolveJob } from '../jobs/index.ts';
import { showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './options.ts';
import { say, write } from './output.ts';

const POLL_MS = 200;

const GROUPS = [
  {
    options: {
      follow: { short: 'f', help: 'go on until the job has ended' },
      lines: { short: 'n', value: 'N', help: 'begin with the last N lines' },
    },
  },
] as const satisfies readonly OptionGroup[];

async function logs({ values, positionals: [word, more] }: Parsed<typeof GROUPS>): Promise<void> {
  if (word === undefined) throw usage('which job? Give its number or name; `gpu-owner jobs` lists them');
  if (more !== undefined) throw usage(`${showValue(more)} is one too many: logs shows one job`);
  const lines = values.lines === undefined ? null : numberOfLines(values.lines);
  const store = JobStore.open();
  const id = resolveJob(store, word);
  let output: JobOutput | null = null;
  for (;;) {
    const { output: path, ended, state } = jobAt(store, id);
    const isOver = ended !== null || state === 'lost';
    if (output === null && path !== null) {
      output = new JobOutput(path, id);
      if (lines !== null) output.skipToLast(lines);
    }
    output?.read(
      (bytes) => write(1, bytes),
      (dropped) => say(`${dropped} bytes of output were not kept here`),
    );
    if (!values.follow || isOver) break;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  output?.close();
}

function numberOfLines(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw usage(`-n: ${showValue(text)} is not a number of lines; use 20, for example`);
}

export const COMMAND: Command = {
  usage: 'JOB [-f] [-n N]',
  about: `Prints what a job has written to standard output and error. JOB is a number or a name.`,
  groups: GROUPS,
  operands: 'jobs',
  run: logs,
};
