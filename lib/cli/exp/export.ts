import { closeSync, openSync, writeFileSync } from 'node:fs';
import { asError, GPUOwnerError } from '../../errors.ts';
import { closest, errorReason, sanitize, showValue } from '../../platform/index.ts';
import { type ExportFormat, exportResults, withQueue } from '../../sweeps/index.ts';
import type { Command } from '../command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from '../command-line.ts';
import { say, write } from '../output.ts';
import { locationOf, QUEUE } from './worker-options.ts';

const FORMATS: readonly string[] = ['csv', 'jsonl'];

const GROUPS = [
  {
    options: {
      format: {
        value: 'csv|jsonl',
        help: 'write csv (default), or jsonl: an object per line, { task_id, id, phases, parameters, result, source }',
        candidates: FORMATS,
      },
      output: {
        short: 'o',
        value: 'FILE',
        help: 'write to a file instead of standard output',
        candidates: 'file',
      },
      ...QUEUE,
    },
  },
] as const satisfies readonly OptionGroup[];

async function run(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { values } = parsed;
  const { format = 'csv' } = values;
  if (!FORMATS.includes(format)) {
    const meant = closest(format, FORMATS);
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `--format: ${showValue(format)} is not known; ${meant ? `did you mean '${meant}'?` : 'use csv or jsonl'}`,
    );
  }
  const path = values.output === undefined || values.output === '-' ? null : values.output;
  await withQueue(
    locationOf(values),
    async (queue) => {
      const file = path === null ? null : openFile(path);
      const output = (text: string) => (file === null ? write(1, text) : writeFileSync(file, text));
      try {
        const count = await exportResults(queue, output, format as ExportFormat);
        if (path !== null)
          say(`${count} ${count === 1 ? 'result' : 'results'} written to ${sanitize(path, 500)}`);
      } catch (error) {
        throw asError(error).syscall === 'write' ? unwritable(path as string, error) : error;
      } finally {
        if (file !== null) closeSync(file);
      }
    },
    { mayBeReadOnly: true },
  );
}

function openFile(path: string): number {
  try {
    return openSync(path, 'w');
  } catch (error) {
    throw unwritable(path, error);
  }
}

function unwritable(path: string, error: unknown): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `${sanitize(path, 500)} can't be written: ${errorReason(error)}; name another file with --output`,
  );
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Writes the results of all completed tasks to one table, in the order of completion: parameters and metrics of all phases, empty where a task has none.`,
  groups: GROUPS,
  run,
};
