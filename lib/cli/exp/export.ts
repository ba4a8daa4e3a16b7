import { createWriteStream } from 'node:fs';
import { Writable } from 'node:stream';
import { GPUOwnerError } from '../../errors.ts';
import { type ExportFormat, exportResults } from '../../experiments/results/export.ts';
import { systemError } from '../../system-errors.ts';
import { closest, sanitize, showValue } from '../../text.ts';
import { parse, refuseWords } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { print, say, write } from '../output.ts';
import { QUEUE, QUEUE_HELP, withQueue } from './queue-options.ts';

const HELP = `Usage: gpu-owner exp export [OPTIONS]

Writes the results of all completed tasks to one table, in the order of
completion: parameters and metrics of all phases, empty where a task has none.

  --format csv|jsonl        jsonl: an object per line, { task_id, id, phases,
                            parameters, result, source } (default: csv)
  -o, --output FILE         a file instead of standard output
${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = {
  ...QUEUE,
  format: { type: 'string' },
  output: { type: 'string', short: 'o' },
} as const;

const FORMATS: readonly string[] = ['csv', 'jsonl'];

async function run(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const format = String(values.format ?? 'csv');
  if (!FORMATS.includes(format)) {
    const meant = closest(format, FORMATS);
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `--format: ${showValue(format)} is not known; ${meant ? `did you mean '${meant}'?` : 'right are csv and jsonl'}`,
    );
  }
  const path = values.output === undefined || values.output === '-' ? null : String(values.output);
  await withQueue(values, async (queue) => {
    const output = path === null ? standardOutput() : createWriteStream(path);
    try {
      const count = await exportResults(queue, output, format as ExportFormat);
      await ended(output);
      if (path !== null)
        say(`${count} ${count === 1 ? 'result' : 'results'} written to ${sanitize(path, 500)}`);
    } catch (error) {
      const { errno } = error as NodeJS.ErrnoException;
      if (errno === undefined) throw error;
      throw new GPUOwnerError(
        'ERR_INVALID_ARGUMENT',
        `${sanitize(path ?? 'standard output', 500)} can't be written: ${systemError(-errno)}`,
      );
    }
  });
}

/** A reader that has seen enough ends it. */
function standardOutput(): Writable {
  return new Writable({
    write: (chunk: Buffer, _, done) => {
      write(1, chunk);
      done();
    },
  });
}

function ended(output: Writable): Promise<void> {
  return new Promise((resolve, reject) => {
    output.on('error', reject);
    output.end(() => resolve());
  });
}

export const COMMAND: Command = { run, help: HELP, options: OPTIONS };
