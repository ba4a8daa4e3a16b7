// The memory of `gpu-owner enforce`, for when it was killed: a file that only root can write.

import { lstatSync, mkdirSync, readFileSync, renameSync, unlinkSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { ifPossible } from '../errors.ts';
import { bootId, Directory, isRoot, schema, systemError } from '../platform/index.ts';
import type { Cases } from './cases.ts';

/** Empty after each boot, as cases are. */
const DIRECTORY = '/run/gpu-owner';

const time = schema.amount();
const mapOf =
  <T>(check: schema.Check<T>): schema.Check<Record<string, T>> =>
  (value, path) =>
    Object.fromEntries(
      Object.entries(schema.object(value, path)).map(([key, each]) => [key, check(each, path)]),
    );
const STATE = schema.jsonOf(
  schema.record({
    boot: schema.text,
    cases: mapOf(
      schema.record({
        warnedAt: time,
        lastSeenAt: time,
        isStubborn: schema.flag,
        processes: mapOf(
          schema.record({
            seenAt: time,
            terminatedAt: schema.nullable(time),
            killedAt: schema.nullable(time),
          }),
        ),
      }),
    ),
  }),
);

export function statePath(): string {
  const machine = simulatedMachine();
  return join(machine === null ? DIRECTORY : simulationDirectory(machine), 'enforce.json');
}

/** The cases of this boot; without a trustworthy file, the users are warned again. */
export function readCases(path = statePath()): Cases {
  const text = ifPossible(() => (isRoot(lstatSync(path).uid) ? readFileSync(path, 'utf8') : null), null);
  const state = text === null ? null : schema.readAs(STATE, text);
  return state === null || state.boot !== bootId() ? {} : state.cases;
}

/** Replaces the file in one step. */
export function writeCases(cases: Cases, path = statePath()): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
  // The directory of a simulated machine may be another user's, who could put links there.
  const directory = Directory.open(dirname(path));
  if (typeof directory === 'number') throw new Error(systemError(-directory));
  const file = `/proc/self/fd/${directory.descriptor}/${basename(path)}`;
  if (lstatSync(`${file}.new`, { throwIfNoEntry: false })) unlinkSync(`${file}.new`);
  writeFileSync(`${file}.new`, JSON.stringify({ boot: bootId(), cases }), { mode: 0o644, flag: 'wx' });
  renameSync(`${file}.new`, file);
}

/** When a `gpu-owner enforce` last looked, in ms since 1970; null: never since boot. */
export function lastLook(path = statePath()): number | null {
  const status = lstatSync(path, { throwIfNoEntry: false });
  return status !== undefined && isRoot(status.uid) ? status.mtimeMs : null;
}
