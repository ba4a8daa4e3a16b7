import type { OutputPiece } from '../fleet/index.ts';
import { describeNamed, followOutput, JobStore, type OutputPart, resolveNames } from '../jobs/index.ts';
import { showValue, usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { addressOf } from './job-address.ts';
import { print, say, write } from './output.ts';

/** Interval of signs of life to a reader on another machine, in ms. */
const HEARTBEAT_MS = 3_000;

const GROUPS = [
  {
    options: {
      follow: { short: 'f', help: 'go on until the job has ended' },
      lines: { short: 'n', value: 'N', help: 'begin with the last N lines' },
      'over-ssh': {
        value: 'OFFSET',
        help: 'print JSON from the byte at OFFSET on (negative: from the end); for gpu-owner on another machine',
        isHidden: true,
      },
    },
  },
] as const satisfies readonly OptionGroup[];

async function logs({ values, positionals: [word, more] }: Parsed<typeof GROUPS>): Promise<void> {
  if (word === undefined) throw usageError('which job? Give its number or name; `gpu-owner jobs` lists them');
  if (more !== undefined) throw usageError(`unexpected argument ${showValue(more)}: logs takes one job`);
  const lines = values.lines === undefined ? null : numberOfLines(values.lines);
  const follow = values.follow === true;
  const from = values['over-ssh'] ?? null;
  const address = addressOf(word);
  if (address !== null) {
    const { showLogs } = await import('./jobs-elsewhere.ts');
    return showLogs(address, { lines, follow });
  }
  const at = Number(/^-?\d{1,15}$/.exec(from ?? '')?.[0] ?? 0);
  const store = JobStore.open();
  const [named = 0] = resolveNames(store, [word]);
  const id = typeof named === 'number' ? named : named.id;
  const state = () => describeNamed(store, named);
  const printed = from === null ? new Plain() : new OverSSH(id);
  for await (const piece of followOutput(id, state, { at, lines, follow })) printed.print(piece);
}

/** Output as it is. */
class Plain {
  print({ dropped, bytes }: OutputPart): void {
    if (dropped > 0) say(`${dropped} bytes of output were not kept here`);
    write(1, bytes);
  }
}

/** Output for a gpu-owner on another machine: a line of JSON for each piece, and where it goes on. */
class OverSSH {
  readonly #id: number;
  #printed = 0;

  constructor(id: number) {
    this.#id = id;
  }

  print({ bytes, ...piece }: OutputPart & { size: number; isOver: boolean }): void {
    const isQuiet = bytes.length === 0 && piece.dropped === 0 && !piece.isOver;
    if (isQuiet && performance.now() - this.#printed < HEARTBEAT_MS) return;
    const record = { ...piece, id: this.#id, bytes: bytes.toString('base64') } satisfies OutputPiece;
    print(JSON.stringify([record]));
    this.#printed = performance.now();
  }
}

function numberOfLines(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw usageError(`-n: ${showValue(text)} is not a number of lines; use 20, for example`);
}

export const COMMAND: Command = {
  usage: 'JOB [-f] [-n N]',
  about: `Prints what a job has written to standard output and error. JOB is a number or a name, HOST:JOB one of another machine.`,
  groups: GROUPS,
  operands: 'jobs',
  run: logs,
};
