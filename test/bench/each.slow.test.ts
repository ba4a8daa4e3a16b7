// Each benchmark in its quick form, as a whole process. Their figures count for nothing here, so they may disturb each other.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { names } from '../../bench/benchmarks.js';
import { whyUnchanged } from '../support/changes.ts';

const script = join(import.meta.dirname, '../../bench/run.js');
const why = whyUnchanged(['bench', 'test/bench/each.slow.test.ts']);

test.skipIf(why !== null).concurrent.each(names)('%s measures, and leaves nothing behind', async (name) => {
  const directory = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-test-'));
  const temporary = join(directory, 'tmp');
  const file = join(directory, 'results.json');
  mkdirSync(temporary);
  try {
    const words = [script, '--quick', '--json', file, name];
    const env = { ...process.env, TMPDIR: temporary };
    const child = spawn(process.execPath, words, { env, timeout: 110_000 });
    child.stdout.resume();
    const [output, [status]] = await Promise.all([text(child.stderr), once(child, 'close')]);
    expect(status, output).toBe(0);
    const { tables, leftOut } = JSON.parse(readFileSync(file, 'utf8')).benchmarks[name];
    expect(tables.length + leftOut.length).toBeGreaterThan(0);
    expect(readdirSync(temporary)).toEqual([]);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
