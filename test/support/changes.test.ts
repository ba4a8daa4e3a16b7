import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { whyUnchanged } from './changes.ts';

let clone: string;
beforeEach(() => {
  clone = mkdtempSync(join(tmpdir(), 'gpu-owner-changes-'));
  for (const name of ['GPU_OWNER_SOAK', 'GPU_OWNER_TEST_BASE']) vi.stubEnv(name, undefined);
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(clone, { recursive: true });
});

function git(...args: string[]): void {
  const identity = ['-c', 'user.name=a', '-c', 'user.email=a@example.org', '-c', 'commit.gpgsign=false'];
  execFileSync('git', [...identity, ...args], { cwd: clone, stdio: 'pipe' });
}

function write(...paths: string[]): void {
  mkdirSync(join(clone, 'bench'), { recursive: true });
  for (const path of paths) writeFileSync(join(clone, path), String(Math.random()));
}

function commit(...paths: string[]): void {
  write(...paths);
  git('add', '.');
  git('commit', '-m', 'a change');
}

const why = () => whyUnchanged(['bench', 'package.json'], clone);

test('a change has what its commits, the working tree and new files have', () => {
  git('init', '-q', '-b', 'main');
  commit('package.json', 'bench/a.js', 'README.md');
  expect(why()).toBe('unchanged since main');
  write('README.md');
  expect(why()).toBe('unchanged since main');
  write('bench/new.js');
  expect(why()).toBeNull();
  rmSync(join(clone, 'bench/new.js'));
  write('bench/a.js');
  expect(why()).toBeNull();
  git('checkout', '-q', '.');
  git('checkout', '-q', '-b', 'change');
  expect(why()).toBe('unchanged since main');
  commit('bench/a.js');
  commit('README.md');
  expect(why()).toBeNull();
  vi.stubEnv('GPU_OWNER_TEST_BASE', 'HEAD~1');
  expect(why()).toBe('unchanged since HEAD~1');
  vi.stubEnv('GPU_OWNER_SOAK', '1');
  expect(why()).toBeNull();
});

test('what others have committed since is not in the change', () => {
  git('init', '-q', '-b', 'main');
  commit('package.json');
  git('checkout', '-q', '-b', 'change');
  git('checkout', '-q', 'main');
  commit('package.json');
  git('checkout', '-q', 'change');
  expect(why()).toBe('unchanged since main');
});

test('everything counts as changed where nothing can be compared', () => {
  expect(why()).toBeNull();
  git('init', '-q', '-b', 'topic');
  commit('README.md');
  expect(why()).toBeNull();
  vi.stubEnv('GPU_OWNER_TEST_BASE', '0'.repeat(40));
  expect(why()).toBeNull();
});
