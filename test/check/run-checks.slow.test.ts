// The doctor itself: whatever happens to one of its checks, the others are told.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CATALOGUE, finding, SUBJECTS } from '../../lib/check/finding.ts';
import {
  because,
  compile,
  type Diagnosis,
  diagnose,
  diagnosisOf,
  noCompiler,
  said,
} from '../support/doctor.ts';
import { command, Machine } from '../support/machine.ts';

/** Tells what hangs for ever from a machine that is busy. */
const ENDLESS_MS = 60_000;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

/** With JavaScript that runs first in each of its processes; `part` is the check, undefined in the process that asks. */
async function hooked(source: string): Promise<Diagnosis> {
  const hook = join(machine.directory, 'hook.cjs');
  writeFileSync(
    hook,
    `const part = process.argv[process.argv.indexOf('--part') + 1 || Infinity];\n${source}`,
  );
  const { code, stdout, stderr } = await machine.run([
    process.execPath,
    '-r',
    hook,
    command,
    'doctor',
    '--json',
  ]);
  return diagnosisOf(code, stdout, stderr);
}

test.skipIf(noCompiler !== null)(
  `a file system that hangs ends its check alone${because(noCompiler)}`,
  async () => {
    const shim = compile(machine, join(import.meta.dirname, 'fixtures/sick_shim.c'));
    const begin = performance.now();
    const diagnosis = await diagnose(machine, {
      env: { GPU_OWNER_LOCK_DIR: machine.directory, LD_PRELOAD: shim, HANG_AT: machine.directory },
    });
    expect(performance.now() - begin).toBeLessThan(ENDLESS_MS);
    // Whether CUDA works is tried on free GPUs: the locks tell which.
    expect(diagnosis).toMatchObject({ code: 1, ids: ['check-hangs', 'check-hangs'] });
    const hanging = diagnosis.findings.filter(({ id }) => id === 'check-hangs');
    expect(hanging.map(({ subject }) => subject).sort()).toEqual(['driver', 'lock-directory']);
    expect(hanging.map(({ text }) => text).join()).toMatch(
      /No answer within 5 s while looking for the lock directory\./,
    );
    expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
  },
);

test('a check that crashes or throws is a finding, and the others go on', async () => {
  const diagnosis = await hooked(`
    if (part === 'driver') console.log('hello from a library\\n3\\nnull');
    if (part === 'conventions') process.kill(process.pid, 'SIGSEGV');
    if (part === 'surroundings') { console.error('it is broken'); process.exit(3); }
    if (part === 'installation') require('node:fs').readFileSync = () => { throw new TypeError('no reading today'); };`);
  expect(diagnosis.code).toBe(1);
  const failed = diagnosis.findings.filter(({ id }) => id === 'check-failed');
  expect(failed.map(({ subject }) => subject)).toEqual(['installation', 'surroundings', 'conventions']);
  expect(failed[0]?.text).toMatch(/no reading today/);
  expect(failed[1]?.text).toMatch(/it is broken/);
  expect(failed[2]?.text).toMatch(/SIGSEGV, while looking for lock files|SIGSEGV/);
  expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
});

test('the findings count of a check whose process can’t end, as the driver has a thread of it', async () => {
  const begin = performance.now();
  // Only once: a process whose output has no reader any longer must still be able to end.
  const diagnosis = await hooked(`const { exit } = process;
    if (part === 'driver') process.exit = () => { process.exit = exit; setInterval(() => {}, 1_000); };`);
  expect(performance.now() - begin).toBeLessThan(ENDLESS_MS);
  expect(diagnosis).toMatchObject({ code: 0, ids: [] });
  expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
});

test('a check that computes, or gets no processor, hangs nowhere', async () => {
  // After its first line, for longer than a step may take.
  const diagnosis = await hooked(`const { write } = process.stdout;
    if (part === 'driver') process.stdout.write = (...args) => {
      process.stdout.write = write;
      write.apply(process.stdout, args);
      for (const end = Date.now() + 7_000; Date.now() < end; );
      return true;
    };`);
  expect(diagnosis).toMatchObject({ code: 0, ids: [] });
  expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
});

test('the doctor checks in its own process if none can be started', async () => {
  const diagnosis = await hooked(`process.execPath = '/nonexistent/node';`);
  expect(diagnosis.findings.filter(({ id }) => id === 'check-failed')).toEqual([]);
  expect(diagnosis).toMatchObject({ code: 0, ids: [] });
  expect(diagnosis.findings.map(({ id }) => id)).toEqual(
    expect.arrayContaining(['driver', 'gpus', 'version']),
  );
});

test('the simulator’s own words explain a simulated machine that can’t be used', async () => {
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_SIMULATE: 'no-such-machine' } });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['driver-failed'] });
  expect(said(diagnosis, 'driver-failed')).toMatch(/There is no simulated machine 'no-such-machine'/);
});

test('what others have written is harmless to print', () => {
  const { text, remedy } = finding('mig', 'a\u001b[31mb\nc\u202ed', 'x\ny');
  expect({ text, remedy }).toEqual({ text: 'ab cd', remedy: 'x y' });
});

test('each finding that is not ok is looked for by a test', () => {
  const sources = [import.meta.dirname, join(import.meta.dirname, '../integration')]
    .flatMap((room) => readdirSync(room).map((name) => join(room, name)))
    .filter((path) => path.endsWith('.test.ts'))
    .map((path) => readFileSync(path, 'utf8'))
    .join('\n');
  for (const [id, [, level]] of Object.entries(CATALOGUE)) {
    if (level !== 'ok') expect(sources.includes(`'${id}'`) || sources.includes(`${id}: `), id).toBe(true);
  }
});

test('subjects are told in one order', async () => {
  const { findings } = await diagnose(machine);
  const order = findings.map(({ subject }) => SUBJECTS.indexOf(subject));
  expect(order).toEqual(order.toSorted((a, b) => a - b));
  expect(new Set(order).size).toBe(SUBJECTS.length);
});
