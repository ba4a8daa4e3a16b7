// The values that a run of W&B has logged, as its file on disk has them, also offline: a log of LevelDB with protobuf records
// (wandb/proto/wandb_internal.proto).

import { closeSync, constants, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { isFailure } from '../../errors.ts';
import { isValues, readValue, type TaskCommand, type Value, type Values } from '../task/index.ts';

/** The length of the header of a record, and of the file. */
const HEADER_BYTES = 7;
const BLOCK_BYTES = 32 * 1024;
const MAX_FILE_BYTES = 256 * 1024 * 1024;
/** Fields of the messages. */
const KINDS: Readonly<Record<number, Row['kind']>> = { 2: 'history', 3: 'summary', 18: 'exit' };
const ITEMS = 1;
const ITEM = { key: 1, nestedKey: 2, boolean: 4, integer: 5, number: 6, text: 7, json: 8, valueJSON: 16 };

/** The values of one call of `wandb.log()`, or of the run's summary; or its end. */
interface Row {
  kind: 'history' | 'summary' | 'exit';
  values: Values;
  /** What stands for a metric instead of its last value: `define_metric('acc', summary='max')`. */
  aggregates: Values;
}

/** The file of a run of W&B, also while it is written: see files/wandb.ts. */
export class WandbRun {
  readonly #directory: string;
  readonly #id: string;
  #path: string | null = null;
  #at = HEADER_BYTES;

  private constructor(directory: string, id: string) {
    this.#directory = directory;
    this.#id = id;
  }

  /**
   * The run of a task of a W&B sweep: it has the name of the task's directory as its number, see sweep/wandb.ts.
   * @param task the file that describes the task @param directory where the command runs
   * @returns null: the command is none of W&B
   */
  static of(command: TaskCommand, task: string, directory: string): WandbRun | null {
    if (!('shell' in command) || !command.shell.includes('WANDB_RUN_ID=')) return null;
    return new WandbRun(join(process.env.WANDB_DIR || directory, 'wandb'), basename(dirname(task)));
  }

  /** Reads the rows since the last call; none where the file can't be read: there may be none. */
  read(): Row[] {
    const rows: Row[] = [];
    try {
      this.#path ??= this.#find();
      if (this.#path === null) return rows;
      // A FIFO would never end.
      const file = openSync(this.#path, constants.O_RDONLY | constants.O_NONBLOCK);
      try {
        const status = fstatSync(file);
        const size = status.size - this.#at;
        if (!status.isFile() || size <= 0 || size > MAX_FILE_BYTES) return rows;
        const bytes = Buffer.alloc(size);
        const length = readSync(file, bytes, 0, size, this.#at);
        for (const { record, end } of recordsIn(bytes.subarray(0, length), this.#at)) {
          this.#at = end;
          rows.push(...rowsIn(record));
        }
      } finally {
        closeSync(file);
      }
    } catch (error) {
      if (!isFailure(error)) throw error; // the result tells
    }
    return rows;
  }

  #find(): string | null {
    const found = readdirSync(this.#directory).find((name) => name.endsWith(`-${this.#id}`));
    return found === undefined ? null : join(this.#directory, found, `run-${this.#id}.wandb`);
  }
}

function* rowsIn(record: Buffer): Generator<Row> {
  for (const [field, message] of fieldsOf(record)) {
    const kind = KINDS[field];
    if (kind === undefined) continue;
    const all: [string, Value][] = [];
    const aggregates: Record<string, Value> = {};
    for (const [part, item] of kind === 'exit' ? [] : fieldsOf(message)) {
      const [name, value] = part === ITEMS ? itemOf(item) : ['', undefined];
      if (value === undefined || name === '' || name.startsWith('_')) continue;
      const flat = flatten(name, value);
      const [only, other] = flat;
      if (
        kind === 'summary' &&
        isValues(value) &&
        only !== undefined &&
        other === undefined &&
        /\.(max|min|mean|first)$/.test(only[0])
      )
        aggregates[name] = only[1];
      all.push(...flat);
    }
    // Pictures and such things are maps with a type.
    const media = all
      .filter(([name]) => name.endsWith('._type'))
      .map(([name]) => name.slice(0, -'_type'.length));
    const shown = all.filter(([name]) => !media.some((each) => name.startsWith(each)));
    yield { kind, values: Object.fromEntries(shown), aggregates };
  }
}

function flatten(name: string, value: Value): [string, Value][] {
  if (!isValues(value)) return [[name, value]];
  return Object.entries(value).flatMap(([key, each]) => flatten(`${name}.${key}`, each));
}

function itemOf(item: Buffer): [name: string, value: Value | undefined] {
  const keys: string[] = [];
  let value: Value | undefined;
  for (const [field, bytes] of fieldsOf(item)) {
    if (field === ITEM.key || field === ITEM.nestedKey) {
      const key = bytes.toString();
      if (key !== '') keys.push(key);
    } else if (field === ITEM.number) value = bytes.readDoubleLE(0);
    else if (field === ITEM.integer) value = Number(BigInt.asIntN(64, varint(bytes, 0).value));
    else if (field === ITEM.boolean) value = varint(bytes, 0).value === 1n;
    else if (field === ITEM.text) value = bytes.toString();
    else if (field === ITEM.json || field === ITEM.valueJSON) value = readValue(bytes.toString());
  }
  return [keys.join('.'), value]; // W&B's own values begin with _
}

/** The fields of a message: those of a length as they are, numbers as their bytes. Ends where it can't be read. */
function* fieldsOf(message: Buffer): Generator<[field: number, bytes: Buffer]> {
  for (let at = 0; at < message.length; ) {
    const tag = varint(message, at);
    const [field, type] = [Number(tag.value >> 3n), Number(tag.value & 7n)];
    let end = tag.end;
    let begin = tag.end;
    if (type === 0) end = varint(message, begin).end;
    else if (type === 1) end += 8;
    else if (type === 5) end += 4;
    else if (type === 2) {
      const length = varint(message, begin);
      begin = length.end;
      end = begin + Number(length.value);
    } else return;
    if (end > message.length || end <= at) return;
    yield [field, message.subarray(begin, end)];
    at = end;
  }
}

function varint(bytes: Buffer, from: number): { value: bigint; end: number } {
  let value = 0n;
  let at = from;
  for (let shift = 0n; shift < 70n && at < bytes.length; shift += 7n) {
    const byte = bytes[at++] as number;
    value |= BigInt(byte & 0x7f) << shift;
    if (byte < 0x80) return { value, end: at };
  }
  return { value, end: Number.POSITIVE_INFINITY };
}

/** Whole, first, middle and last parts of records, in blocks. @param base where the bytes are in the file */
function* recordsIn(file: Buffer, base: number): Generator<{ record: Buffer; end: number }> {
  let parts: Buffer[] = [];
  for (let at = 0; at + HEADER_BYTES <= file.length; ) {
    const left = BLOCK_BYTES - ((base + at) % BLOCK_BYTES);
    if (left < HEADER_BYTES) {
      at += left;
      continue;
    }
    const length = file.readUInt16LE(at + 4);
    const type = file[at + 6];
    const part = file.subarray(at + HEADER_BYTES, at + HEADER_BYTES + length);
    at += HEADER_BYTES + length;
    if (type === 1 || type === 2) parts = [part];
    else parts.push(part);
    if (type === 0 || part.length < length) return;
    if (type === 1 || type === 4) yield { record: Buffer.concat(parts), end: base + at };
  }
}
