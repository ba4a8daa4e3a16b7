import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  fstatSync,
  lchownSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Locating, locate, realPath } from '../../../lib/experiments/project/project-files.ts';
import { NOBODY } from '../../support/machine.ts';

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

/** The path of the file that was found, or what is wrong. */
function find(path: string, locating: Locating = {}): string {
  try {
    const resolved = locate(join(project, path), project, locating);
    try {
      if (existsSync(resolved.at)) {
        const file = openSync(resolved.at, 'r');
        try {
          resolved.check(fstatSync(file));
        } finally {
          closeSync(file);
        }
      }
      return resolved.path;
    } finally {
      resolved.close();
    }
  } catch (error) {
    expect((error as Error).message).not.toContain('/proc/self');
    return (error as Error).message;
  }
}

test('directories are made with those above them, also where others are as quick', () => {
  expect(find('a/b/c/log', { create: true })).toBe(join(project, 'a/b/c/log'));
  expect(existsSync(join(project, 'a/b/c'))).toBe(true);
  expect(find('a/b/c/log', { create: true })).toBe(join(project, 'a/b/c/log'));
});

test('a directory that can’t be made is an error that says why', () => {
  writeFileSync(join(project, 'file'), '');
  symlinkSync(join(project, 'nowhere'), join(project, 'dangling'));
  symlinkSync('loop', join(project, 'loop'));
  expect(find('file/log', { create: true })).toBe(`ENOTDIR: ${project}/file`);
  expect(find('dangling/log', { create: true })).toMatch(/^ENOENT: .*dangling\/log/);
  expect(find('loop/log', { create: true })).toMatch(/^ELOOP/);
  expect(find('a/log')).toMatch(/^ENOENT: .*'.*\/project\/a\/log'/);
});

// Made recursively by Node.js, this never ends.
test('a directory that takes no new ones is named', () => {
  expect(() => locate('/proc/gpu-owner/results/log', project, { create: true })).toThrow(
    /ENOENT.*\/proc\/gpu-owner/,
  );
});

test("one's own links are followed on the way, and in place of a file where that is wanted", () => {
  mkdirSync(join(directory, 'data'));
  symlinkSync('../data', join(project, 'results'));
  symlinkSync(join(directory, 'data', 'table'), join(project, 'link'));
  expect(find('results/log')).toBe(join(directory, 'data/log'));
  expect(find('link', { follow: true })).toBe(join(directory, 'data/table'));
  expect(find('link')).toMatch(/is a symbolic link, which is not followed/);
  expect(realPath(join(project, 'results/not/yet'), project)).toBe(join(directory, 'data/not/yet'));
});

const whyNot = process.geteuid?.() === 0 ? null : 'needs root, to act as two users';

describe.skipIf(whyNot !== null)(`where others may write${whyNot === null ? '' : ` (${whyNot})`}`, () => {
  const give = (path: string, uid = NOBODY) => lchownSync(join(project, path), uid, uid);
  const asVictim = (path: string, locating: Locating = {}): string => {
    process.seteuid?.(VICTIM);
    try {
      return find(path, locating);
    } finally {
      process.seteuid?.(0);
    }
  };
  beforeEach(() => {
    chmodSync(project, 0o1777);
    mkdirSync(join(directory, 'home'));
    writeFileSync(join(directory, 'home', 'file'), 'mine');
    chownSync(join(directory, 'home'), VICTIM, VICTIM);
    chownSync(join(directory, 'home', 'file'), VICTIM, VICTIM);
  });

  test('a directory of somebody else is not used, one of the owner of the project is', () => {
    mkdirSync(join(project, 'results'));
    give('results');
    expect(asVictim('results/log')).toMatch(/project\/results belongs to \S+ and is in a directory/);
    chownSync(project, NOBODY, NOBODY);
    expect(asVictim('results/log')).toBe(join(project, 'results/log'));
  });

  test('a file or a link of somebody else is not used, either', () => {
    writeFileSync(join(project, 'log'), '');
    give('log');
    symlinkSync(join(directory, 'home', 'file'), join(project, 'table'));
    give('table');
    expect(asVictim('log')).toMatch(/project\/log belongs to/);
    expect(asVictim('table', { follow: true })).toMatch(/project\/table belongs to/);
    expect(asVictim('table')).toMatch(/not followed/);
  });

  test('without the sticky bit anybody may exchange a link, so none counts', () => {
    chmodSync(project, 0o777);
    mkdirSync(join(project, 'data'));
    symlinkSync('data', join(project, 'results'));
    give('results', VICTIM);
    give('data', VICTIM);
    expect(asVictim('results/log')).toMatch(/everybody may replace it/);
    expect(asVictim('data/log')).toBe(join(project, 'data/log'));
  });

  test("links of the project's owner are followed to files of that owner only", () => {
    chmodSync(project, 0o755);
    chownSync(project, NOBODY, NOBODY);
    mkdirSync(join(directory, 'data'));
    symlinkSync(join(directory, 'data'), join(project, 'results'));
    symlinkSync(join(directory, 'home', 'file'), join(project, 'table'));
    give('results');
    give('table');
    expect(asVictim('results/log')).toMatch(/link of \S+ to a file of another user/);
    expect(asVictim('table', { follow: true })).toMatch(/link of \S+ to a file of another user/);
    chownSync(join(directory, 'data'), NOBODY, NOBODY);
    expect(asVictim('results/log')).toBe(join(directory, 'data/log'));
  });

  test('a second name of a file counts where only its owner can have made it', () => {
    linkSync(join(directory, 'home', 'file'), join(project, 'log'));
    expect(asVictim('log')).toMatch(/has 2 names \(hard links\)/);
    linkSync(join(directory, 'home', 'file'), join(directory, 'home', 'log'));
    expect(asVictim('../home/log')).toBe(join(directory, 'home/log'));
  });

  test('what a group shares is used by all of it', () => {
    chmodSync(project, 0o2770);
    chownSync(project, NOBODY, VICTIM);
    mkdirSync(join(project, 'results'));
    writeFileSync(join(project, 'results', 'log'), '');
    give('results');
    give('results/log');
    chmodSync(join(project, 'results'), 0o2775);
    process.setegid?.(VICTIM);
    try {
      expect(asVictim('results/log')).toBe(join(project, 'results/log'));
    } finally {
      process.setegid?.(0);
    }
  });
});
