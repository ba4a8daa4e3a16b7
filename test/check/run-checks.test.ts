// The doctor itself: whatever happens to one of its checks, the others are told.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { CATALOGUE, finding } from '../../lib/check/finding.ts';
import { type Diagnosis, diagnosisOf, said } from '../support/doctor.ts';
import { command, Machine } from '../support/machine.ts';
import { soakTest } from '../support/time.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

/** With JavaScript that runs first in each of its processes; `begin(name)` is called as a check begins. */
async function hooked(source: string): Promise<Diagnosis> {
  const hook = join(machine.directory, 'hook.cjs');
  writeFileSync(
    hook,
    `const fs = require('node:fs');
    const { writeSync } = fs;
    const isChild = process.argv.includes('check-part');
    fs.writeSync = (descriptor, bytes, ...more) => {
      const done = writeSync(descriptor, bytes, ...more);
      const name = isChild ? /^{"begun":"([a-z-]+)"}/.exec(String(bytes))?.[1] : undefined;
      if (name !== undefined) begin(name);
      return done;
    };
    function begin(name) {${source}}`,
  );
  const words = [process.execPath, '-r', hook, command, 'doctor', '--json'];
  const { code, stdout, stderr } = await machine.run(words);
  return diagnosisOf(code, stdout, stderr);
}

test('a check that hangs, crashes or throws is a finding, and the others go on', async () => {
  const diagnosis = await hooked(`
    if (name === 'installation') fs.readFileSync = () => { throw new TypeError('no reading today'); };
    if (name === 'configuration') { writeSync(2, 'it is broken'); process.exit(3); }
    if (name === 'lock-directory') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
    if (name === 'gpus') writeSync(1, 'hello from a library\\n3\\nnull\\n');`);
  expect(diagnosis).toMatchObject({ code: 1, ids: ['check-failed', 'check-failed', 'check-hangs'] });
  expect(diagnosis.findings.filter(({ level }) => level === 'problem').map(({ subject }) => subject)).toEqual(
    ['installation', 'configuration', 'lock-directory'],
  );
  expect(said(diagnosis, 'check-failed')).toMatch(/no reading today.*\n.*it is broken/);
  expect(said(diagnosis, 'check-hangs')).toMatch(/^No answer within 5 s\. Claims hang there, too\. -> /);
  expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
});

soakTest('a check that computes for long is waited for, and a process that can’t end is not', async () => {
  // At the time that a step may take, and for longer. As if the driver had a thread of it; only once, as it must end without a reader.
  const diagnosis = await hooked(`
    if (name !== 'lock-directory') return;
    const { exit } = process;
    process.exit = () => { process.exit = exit; setInterval(() => {}, 1_000); };
    const begun = Date.now();
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 4_500);
    while (Date.now() < begun + 6_000);`);
  expect(diagnosis).toMatchObject({ code: 0, ids: [] });
  expect(said(diagnosis, 'gpus')).toMatch(/All answer/);
});

test('what others have written is harmless to print', () => {
  const { text, remedy } = finding('gpus', 'ok', 'gpus', 'a\u001b[31mb\nc\u202ed', 'x\ny');
  expect({ text, remedy }).toEqual({ text: 'ab cd', remedy: 'x y' });
});

test('each finding that is not ok is looked for by a test', () => {
  const sources = [import.meta.dirname, join(import.meta.dirname, '../integration')]
    .flatMap((room) => readdirSync(room).map((name) => join(room, name)))
    .filter((path) => path.endsWith('.test.ts'))
    .map((path) => readFileSync(path, 'utf8'))
    .join('\n');
  for (const [id, level] of Object.entries(CATALOGUE))
    if (level !== 'ok') expect(sources, id).toContain(`'${id}'`);
});
