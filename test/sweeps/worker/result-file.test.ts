import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { readResult } from '../../../lib/sweeps/worker/result-file.ts';

const directory = () => {
  const path = mkdtempSync(join(tmpdir(), 'gpu-owner-result-'));
  onTestFinished(() => rmSync(path, { recursive: true }));
  return path;
};

test.each([
  ['cut', '{"a": 1', /not JSON/],
  ['no object', '[1]', /not a JSON object.*\[1\]/],
  ['not UTF-8', Buffer.from('{"a": "\xff"}', 'latin1'), /not UTF-8/],
  ['empty', '', /empty/],
  ['too large', `"${'x'.repeat(1024 ** 2)}"`, /1048578 bytes.*1 MiB/],
])('a result that can’t be read says why: %s', async (_, content, why) => {
  const path = join(directory(), 'result.json');
  writeFileSync(path, content);
  expect(await readResult(path)).toEqual({ unreadable: expect.stringMatching(why) });
});

test('a missing result is none, and a directory can’t be read', async () => {
  const path = join(directory(), 'result.json');
  expect(await readResult(path)).toBe(null);
  mkdirSync(path);
  expect(await readResult(path)).toEqual({ unreadable: expect.any(String) });
});
