// Files of W&B's runs, made after its protobuf messages; sweep/wandb-real.slow.test.ts reads some of its own.
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { WandbRun } from '../../../lib/sweeps/worker/wandb-run.ts';

const varint = (value: number): number[] =>
  value < 128 ? [value] : [(value % 128) | 128, ...varint(Math.floor(value / 128))];
const field = (number: number, bytes: Buffer | string) => {
  const content = Buffer.from(bytes as string);
  return Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(content.length)]), content]);
};
const double = (number: number, value: number) => {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(value);
  return Buffer.concat([Buffer.from(varint(number * 8 + 1)), bytes]);
};
const item = (...fields: Buffer[]) => field(1, Buffer.concat(fields));
const history = (...items: Buffer[]) => field(2, Buffer.concat(items));
const summary = (...items: Buffer[]) => field(3, Buffer.concat(items));

/** Records as LevelDB's log has them, behind the header of W&B. */
function file(...records: Buffer[]): Buffer {
  let bytes = Buffer.from(':W&B\xe1\xbe\0', 'latin1');
  for (const record of records) {
    for (let at = 0, isFirst = true; isFirst || at < record.length; isFirst = false) {
      const left = 32_768 - (bytes.length % 32_768);
      if (left < 7) bytes = Buffer.concat([bytes, Buffer.alloc(left)]);
      const part = record.subarray(
        at,
        at + Math.min(32_768 - (bytes.length % 32_768) - 7, record.length - at),
      );
      const isLast = at + part.length >= record.length;
      const head = Buffer.alloc(7);
      head.writeUInt16LE(part.length, 4);
      head[6] = isFirst ? (isLast ? 1 : 2) : isLast ? 4 : 3;
      bytes = Buffer.concat([bytes, head, part]);
      at += part.length;
    }
  }
  return bytes;
}

const FILE = 'wandb/run-1-a/run-a.wandb';

function project(): string {
  const path = mkdtempSync(join(tmpdir(), 'gpu-owner-wandb-'));
  onTestFinished(() => rmSync(path, { recursive: true }));
  mkdirSync(join(path, 'wandb/run-1-a'), { recursive: true });
  return path;
}

const runOf = (path: string) =>
  WandbRun.of({ shell: 'WANDB_RUN_ID=' }, join(path, 'a/task.json'), path) as WandbRun;

function valuesIn(bytes: Buffer) {
  const path = project();
  writeFileSync(join(path, FILE), bytes);
  return Object.assign(
    {},
    ...runOf(path)
      .read()
      .map(({ values }) => values),
  );
}

describe('the file of a W&B run', () => {
  test('tells the last values, also of the summary, and of nested keys', () => {
    const found = valuesIn(
      file(
        history(item(field(1, 'loss'), field(16, '0.5')), item(field(1, '_step'), field(16, '0'))),
        field(4, 'output of the program'),
        history(
          item(field(1, 'loss'), double(6, 0.25)),
          item(field(2, 'val'), field(2, 'acc'), field(16, '1e-7')),
        ),
        history(item(field(1, 'image'), field(16, '{"_type":"image-file"}'))),
        summary(
          item(field(1, 'best'), field(16, '"epoch 3"')),
          item(field(1, 'epoch'), Buffer.from([40, 3])),
        ),
      ),
    );
    expect(JSON.parse(JSON.stringify(found))).toMatchObject({ loss: 0.25, best: 'epoch 3', epoch: 3 });
    expect(Object.keys(found)).toEqual(['loss', 'val.acc', 'best', 'epoch']);
  });

  test('has what the summary makes of a metric, no parts of media, and the end of the run', () => {
    const path = project();
    const nested = (keys: string[], json: string) =>
      item(...keys.map((key) => field(2, key)), field(16, json));
    writeFileSync(
      join(path, FILE),
      file(
        summary(
          nested(['acc'], '{"max":0.9}'),
          nested(['l2'], '{"min":0.1,"mean":0.4}'),
          ...[nested(['grad', '_type'], '"histogram"'), nested(['grad', 'bins'], '[1]')],
          ...[nested(['m', 'page', '_type'], '"html-file"'), nested(['m', 'page', 'sha256'], '"80"')],
          nested(['m', 'in'], '1'),
        ),
        field(18, ''),
      ),
    );
    expect(JSON.parse(JSON.stringify(runOf(path).read()))).toEqual([
      {
        kind: 'summary',
        values: { 'acc.max': 0.9, 'l2.min': 0.1, 'l2.mean': 0.4, 'm.in': 1 },
        aggregates: { acc: 0.9 },
      },
      { kind: 'exit', values: {}, aggregates: {} },
    ]);
  });

  test('may have records that are longer than its blocks', () => {
    const long = field(4, 'x'.repeat(100_000));
    expect(valuesIn(file(long, history(item(field(1, 'loss'), field(16, '1'))), long))).toEqual({ loss: 1 });
  });

  test('has no values behind a place where it is damaged or cut off', () => {
    const whole = file(
      history(item(field(1, 'loss'), field(16, '1'))),
      history(item(field(1, 'loss'), field(16, '2'))),
    );
    expect(valuesIn(whole.subarray(0, -1))).toEqual({ loss: 1 });
    for (let at = 0; at < whole.length; at++) {
      const damaged = Buffer.from(whole);
      damaged[at] = 0xff;
      expect(() => valuesIn(damaged)).not.toThrow();
    }
    expect(valuesIn(Buffer.alloc(0))).toEqual({});
  });

  test('is a regular file, which is read on as it grows', () => {
    const whole = file(
      ...[1, 2, 3].map((x) => history(item(field(1, 'x'), field(16, `${x}`)))),
      field(4, 'x'.repeat(50_000)),
    );
    const path = project();
    const run = runOf(path);
    expect(run.read()).toEqual([]);
    const seen: unknown[] = [];
    for (let length = 0; length <= whole.length; length += 11) {
      writeFileSync(join(path, FILE), whole.subarray(0, length));
      seen.push(...run.read());
    }
    expect(seen).toEqual([1, 2, 3].map((x) => ({ kind: 'history', values: { x }, aggregates: {} })));
    rmSync(join(path, FILE));
    symlinkSync('/dev/zero', join(path, FILE));
    expect(runOf(path).read()).toEqual([]);
  });
});
