import type { OutputPiece } from '../fleet/index.ts';
import { isLiving, JobOutput, JobStore, jobAt, partOf, resolveJob } from '../jobs/index.ts';
import { showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { addressOf } from './job-address.ts';
import { type OptionGroup, type Parsed, usage } from './options.ts';
import { print, say, write } from './output.ts';

const POLL_MS = 200;
/** A reader on another machine is told so often that the connection is there, in ms. */
const HEARTBEAT_MS = 3_000;

const GROUPS = [
  {
    options: {
      follow: { short: 'f', help: 'go on until the job has ended' },
      lines: { short: 'n', value: 'N', help: 'begin with the last N lines' },
      'over-ssh': {
        value: 'OFFSET',
        isValueOptional: true,
        help: 'print JSON, beginning with the byte at OFFSET; for gpu-owner on another machine',
        isHidden: true,
      },
    },
  },
] as const satisfies readonly OptionGroup[];

async function logs({ values, positionals: [word, more] }: Parsed<typeof GROUPS>): Promise<void> {
  if (word === undefined) throw usage('which job? Give its number or name; `gpu-owner jobs` lists them');
  if (more !== undefined) throw usage(`${showValue(more)} is one too many: logs shows one job`);
  const lines = values.lines === undefined ? null : numberOfLines(values.lines);
  const address = addressOf(word);
  if (address !== null) {
    const { showLogs } = await import('./jobs-elsewhere.ts');
    return showLogs(address, { lines, follow: values.follow === true });
  }
  const overSSH = values['over-ssh'];
  const offset = typeof overSSH === 'string' ? Number(overSSH) || 0 : null;
  const store = JobStore.open();
  const part = partOf(store, word);
  const parts = part === null ? null : await import('./array-parts.ts');
  const id = part?.job ?? resolveJob(store, word);
  const printed = overSSH === undefined ? new Plain() : new OverSSH(id);
  let output: JobOutput | null = null;
  for (;;) {
    const [described] = part === null ? [] : ((await parts?.describeParts(store, [part])) ?? []);
    const { output: path, state } = described ?? jobAt(store, id);
    const isOver = !isLiving(state);
    if (output === null && path !== null) {
      output = new JobOutput(path, id, offset ?? 0);
      if (lines !== null && offset === null) output.skipToLast(lines);
    }
    output?.read(
      (bytes) => printed.bytes(bytes, output?.at ?? 0),
      (dropped) => printed.dropped(dropped),
    );
    const isLast = !values.follow || isOver;
    printed.end(output?.at ?? 0, isLast);
    if (isLast) break;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  output?.close();
}

/** Output as it is. */
class Plain {
  bytes(bytes: Buffer, _at: number): void {
    write(1, bytes);
  }

  dropped(bytes: number): void {
    say(`${bytes} bytes of output were not kept here`);
  }

  end(_at: number, _isOver: boolean): void {}
}

/** Output for a gpu-owner on another machine: a line of JSON for each piece, and where it goes on. */
class OverSSH {
  readonly #id: number;
  #dropped = 0;
  #printed = 0;

  constructor(id: number) {
    this.#id = id;
  }

  /** @param at where the next piece begins */
  bytes(bytes: Buffer, at: number): void {
    this.#print(bytes, at, false);
  }

  dropped(bytes: number): void {
    this.#dropped += bytes;
  }

  end(at: number, isOver: boolean): void {
    const isQuiet = this.#dropped === 0 && !isOver && performance.now() - this.#printed < HEARTBEAT_MS;
    if (!isQuiet) this.#print(Buffer.alloc(0), at, isOver);
  }

  #print(bytes: Buffer, at: number, isOver: boolean): void {
    const piece = { id: this.#id, at, bytes: bytes.toString('base64'), dropped: this.#dropped, isOver };
    print(JSON.stringify([piece satisfies OutputPiece]));
    this.#dropped = 0;
    this.#printed = performance.now();
  }
}

function numberOfLines(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw usage(`-n: ${showValue(text)} is not a number of lines; use 20, for example`);
}

export const COMMAND: Command = {
  usage: 'JOB [-f] [-n N]',
  about: `Prints what a job has written to standard output and error. JOB is a number or a name, HOST:JOB one of another machine.`,
  groups: GROUPS,
  operands: 'jobs',
  run: logs,
};
