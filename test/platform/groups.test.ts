import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { groupNames, groupsOf, isUserOf } from '../../lib/platform/processes.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true });
});

test('a directory service is asked once for a group that /etc/group lacks, also for one that it doesn’t know', () => {
  const answer = `[ "$3" = no-group ] || echo "$3:x:${process.getegid?.()}:"`;
  const calls = standIn('getent', `echo "$3" >>$calls\n${answer}`);
  for (let i = 0; i < 3; i++) expect(groupNames(['no-local-group', 'no-group'])).toEqual(['no-local-group']);
  expect(readFileSync(calls, 'utf8')).toBe('no-local-group\nno-group\n');
});

/** Puts a program before the system's. @param script in which `$calls` is a file for what it was asked */
function standIn(name: string, script: string): string {
  const calls = join(directory, 'calls');
  writeFileSync(join(directory, name), `#!/bin/sh\ncalls=${calls}\n${script}\n`, { mode: 0o755 });
  vi.stubEnv('PATH', `${directory}:${process.env.PATH}`);
  return calls;
}

const REMOTE = 4_000_000_017;

test('a user is known by a name that only a directory service has, which is asked once', () => {
  const calls = standIn(
    'getent',
    `echo "$3" >>$calls\n[ "$3" = remote ] && echo "$3:x:${REMOTE}:100::/:/bin/sh"`,
  );
  for (let i = 0; i < 3; i++) expect(isUserOf(REMOTE, ['remote'])).toBe(true);
  expect(isUserOf(REMOTE + 1, ['remote'])).toBe(false);
  expect(readFileSync(calls, 'utf8')).toBe('remote\n');
  for (let i = 0; i < 3; i++) expect(isUserOf(REMOTE, ['no-user'])).toBeNull();
  expect(isUserOf(REMOTE, ['no-user', 'remote'])).toBe(true);
  expect(readFileSync(calls, 'utf8')).toBe('remote\nno-user\n');
});

test('the groups of a user whom /etc/passwd lacks are asked for by number', () => {
  const calls = standIn('id', 'echo "$@" >>$calls\necho 100 200');
  expect([...groupsOf(REMOTE)]).toEqual([100, 200]);
  expect(readFileSync(calls, 'utf8')).toBe(`-G -- ${REMOTE}\n`);
});
