import {
  chmodSync,
  chownSync,
  existsSync,
  lchownSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { makeDirectory, realPath, refuseOtherThanFile } from '../../../lib/sweeps/project/project-files.ts';
import { actAs } from '../../support/bundle.ts';
import { because } from '../../support/doctor.ts';
import { NOBODY, whyNotNobody } from '../../support/machine.ts';

const VICTIM = 54_321;

let directory: string;
let project: string;

beforeEach(() => {
  directory = realpathSync(mkdtempSync(join(tmpdir(), 'gpu-owner-project-files-')));
  chmodSync(directory, 0o755);
  project = join(directory, 'project');
  mkdirSync(project);
});

afterEach(() => rmSync(directory, { recursive: true, force: true }));

/** Makes a directory. @returns what is wrong; null: it is there */
function make(path: string): string | null {
  try {
    makeDirectory(join(project, path), project);
    expect(statSync(join(project, path)).isDirectory()).toBe(true);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

test('directories are made with those above them, also where another process is as quick', () => {
  expect(make('a/b/c')).toBeNull();
  expect(make('a/b/c')).toBeNull();
});

test('a directory that can’t be made is an error that says why', () => {
  writeFileSync(join(project, 'file'), '');
  symlinkSync(join(project, 'nowhere'), join(project, 'dangling'));
  symlinkSync('loop', join(project, 'loop'));
  expect(make('file/logs')).toMatch(/^ENOTDIR: .*project\/file/);
  expect(make('dangling')).toMatch(/^EEXIST: .*dangling/);
  expect(make('loop/logs')).toMatch(/^ELOOP/);
});

// Made recursively by Node.js, this never ends.
test('a directory that takes no new ones is named', () => {
  expect(() => makeDirectory('/proc/gpu-owner/results', project)).toThrow(/ENOENT.*\/proc\/gpu-owner/);
});

test('links are resolved as far as the path exists', () => {
  mkdirSync(join(directory, 'data'));
  symlinkSync('../data', join(project, 'results'));
  expect(realPath(join(project, 'results/not/yet'))).toBe(join(directory, 'data/not/yet'));
});

test('in the place of a log, a link and a directory are refused', () => {
  symlinkSync('elsewhere', join(project, 'link'));
  expect(() => refuseOtherThanFile(join(project, 'link'))).toThrow(/symbolic link, which is not followed/);
  expect(() => refuseOtherThanFile(project)).toThrow(/not a regular file: move it away/);
  expect(() => refuseOtherThanFile(join(project, 'nothing'))).not.toThrow();
});

const whyNot = whyNotNobody();

describe.skipIf(whyNot !== null)(`where others may write${because(whyNot)}`, () => {
  type Module = typeof import('../../../lib/sweeps/project/project-files.ts');
  const asVictim = actAs<Module>(VICTIM, 'lib/sweeps/project/project-files.ts');
  const judge = (path: string, owner = VICTIM) => asVictim('whyReplaceable', path, owner);
  const makeAsVictim = (path: string) => asVictim('makeDirectory', join(project, path), project);
  beforeEach(() => chownSync(project, VICTIM, VICTIM));

  test('a directory that its owner and its group may write to is used', async () => {
    for (const mode of [0o755, 0o2770, 0o775]) {
      chmodSync(project, mode);
      expect(await judge(project)).toBeNull();
      expect(await judge(join(project, 'not/yet'))).toBeNull();
    }
  });

  test('a directory that everybody may write to is refused, also a sticky one', async () => {
    for (const mode of [0o777, 0o1777]) {
      chmodSync(project, mode);
      expect(await judge(project)).toBe(`everybody may write to ${project}: chmod o-w ${project}`);
    }
    expect(await judge(join(project, 'not/yet'))).toBeNull();
  });

  test('so is one below a directory in which everybody may exchange it', async () => {
    chmodSync(directory, 0o777);
    expect(await judge(project)).toMatch(/everybody may replace what is in .*: chmod o-w .*, or chmod \+t/);
    expect(await judge(join(directory, 'not/yet'))).toMatch(/everybody may replace/);
    chmodSync(directory, 0o1777);
    expect(await judge(project)).toBeNull();
  });

  test('behind a link, the directory itself is judged', async () => {
    const open = join(directory, 'open');
    mkdirSync(open);
    chmodSync(open, 0o777);
    mkdirSync(join(open, 'data'));
    symlinkSync(join(open, 'data'), join(project, 'results'));
    expect(await judge(join(project, 'results'))).toMatch(/everybody may replace what is in .*\/open/);
  });

  test('in a sticky directory, one of another user is refused, one of the project’s owner is not', async () => {
    chmodSync(directory, 0o1777);
    const theirs = join(directory, 'results');
    mkdirSync(theirs);
    lchownSync(theirs, NOBODY, NOBODY);
    const why = /results belongs to \S+ and is in a directory that everybody may write to/;
    expect(await judge(theirs)).toMatch(why);
    expect(await judge(join(theirs, 'not/yet'))).toMatch(why);
    expect(await judge(theirs, NOBODY)).toBeNull();
  });

  test('a directory outside of the project is judged when it is used, one inside is not', async () => {
    chmodSync(directory, 0o1777);
    mkdirSync(join(directory, 'results'));
    chownSync(join(directory, 'results'), NOBODY, NOBODY);
    await expect(makeAsVictim('../results')).rejects.toThrow(/results belongs to/);
    for (const path of ['../mine', 'results']) {
      await makeAsVictim(path);
      expect(existsSync(join(project, path))).toBe(true);
    }
  });
});
