import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { groupNames } from '../../lib/platform/processes.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true });
});

test('a directory service is asked once for a group that /etc/group lacks', () => {
  const calls = join(directory, 'calls');
  const getent = join(directory, 'getent');
  writeFileSync(getent, `#!/bin/sh\necho "$3" >>${calls}\necho "$3:x:${process.getegid?.()}:"\n`);
  chmodSync(getent, 0o755);
  vi.stubEnv('PATH', `${directory}:${process.env.PATH}`);
  for (let i = 0; i < 3; i++) expect(groupNames(['no-local-group'])).toEqual(['no-local-group']);
  expect(readFileSync(calls, 'utf8')).toBe('no-local-group\n');
});
