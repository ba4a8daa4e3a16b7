import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { onWarning } from '../../../lib/platform/system.ts';
import { findProject, openProject } from '../../../lib/sweeps/project/project.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import { actAs } from '../../support/bundle.ts';
import { because } from '../../support/doctor.ts';
import { NOBODY, whyNotNobody } from '../../support/machine.ts';

let directory: string;
let project: string;
let home: string;
const before = process.env.XDG_STATE_HOME;

beforeEach(() => {
  directory = realpathSync(mkdtempSync(join(tmpdir(), 'gpu-owner-project-')));
  project = join(directory, 'project');
  home = join(directory, 'state');
  mkdirSync(project);
  process.env.XDG_STATE_HOME = home;
});

afterEach(() => {
  if (before === undefined) delete process.env.XDG_STATE_HOME;
  else process.env.XDG_STATE_HOME = before;
  rmSync(directory, { recursive: true, force: true });
});

/** Everything in the project, and nothing else, is on NFS. */
const network = (path: string) => (path.startsWith(project) ? 'NFS' : undefined);

function refusal(act: () => unknown): string {
  try {
    act();
  } catch (error) {
    expect(error).toMatchObject({ code: 'ERR_QUEUE' });
    return (error as Error).message;
  }
  throw new Error('it was not refused');
}

test('a project keeps its state in itself, and out of repositories', () => {
  expect(findProject(project)).toBeNull();
  const link = join(directory, 'link');
  symlinkSync(project, link);
  const expected = { directory: project, state: join(project, '.gpu-owner') };
  expect(openProject(link)).toEqual(expected);
  expect(readFileSync(join(expected.state, '.gitignore'), 'utf8')).toBe('*\n');
  writeFileSync(join(expected.state, '.gitignore'), '# mine\n');
  expect(openProject(project)).toEqual(expected);
  expect(findProject(project)).toEqual(expected);
  expect(readFileSync(join(expected.state, '.gitignore'), 'utf8')).toBe('# mine\n');
  expect(existsSync(home)).toBe(false);
});

test('a project that is not a directory is refused', () => {
  for (const name of ['nothing', 'file']) {
    if (name === 'file') writeFileSync(join(directory, name), '');
    expect(() => openProject(join(directory, name))).toThrow(/project directory/);
    expect(() => findProject(join(directory, name))).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }),
    );
  }
});

test('something else by the name of the state directory is refused', () => {
  writeFileSync(join(project, '.gpu-owner'), '');
  expect(refusal(() => openProject(project))).toMatch(/not a directory/);
  rmSync(join(project, '.gpu-owner'));
  symlinkSync(join(directory, 'nowhere'), join(project, '.gpu-owner'));
  expect(refusal(() => findProject(project))).toMatch(/symbolic link/);
});

describe('on a network file system', () => {
  test('many machines share the directory with a queue on a Redis', () => {
    openProject(project, { network, host: 'alpha' }); // a queue of its own, once
    for (const host of ['beta', 'gamma']) {
      expect(openProject(project, { network, host, isOnServer: true })).toEqual({
        directory: project,
        state: join(project, '.gpu-owner'),
        host,
      });
    }
  });

  test('the state is on a local disk, and the project says where', () => {
    expect(findProject(project, { network })).toBeNull();
    expect(existsSync(home)).toBe(false);
    const opened = openProject(project, { network, host: 'alpha' });
    expect(opened.directory).toBe(project);
    expect(opened.state).toMatch(new RegExp(`^${home}/gpu-owner/[0-9a-f]{16}$`));
    expect(JSON.parse(readFileSync(join(project, '.gpu-owner', 'elsewhere.json'), 'utf8'))).toEqual({
      host: 'alpha',
      path: opened.state,
    });
    process.env.XDG_STATE_HOME = join(directory, 'another');
    expect(openProject(project, { network, host: 'alpha' })).toEqual(opened);
    expect(findProject(project, { network, host: 'alpha' })).toEqual(opened);
    expect(openProject(directory, { network }).state).toBe(join(directory, '.gpu-owner'));
  });

  test('other hosts are told where the queue is', () => {
    openProject(project, { network, host: 'alpha' });
    for (const open of [openProject, findProject]) {
      const message = refusal(() => open(project, { network, host: 'beta' }));
      expect(message).toMatch(/queue on alpha.*NFS.*this is beta.*elsewhere\.json/);
    }
    rmSync(join(project, '.gpu-owner', 'elsewhere.json'));
    expect(findProject(project, { network, host: 'beta' })).toBeNull();
    openProject(project, { network, host: 'beta' });
    expect(refusal(() => openProject(project, { network, host: 'alpha' }))).toMatch(/queue on beta/);
  });

  test('a project whose state was deleted starts with a new queue', () => {
    const { state } = openProject(project, { network });
    rmSync(home, { recursive: true });
    expect(findProject(project, { network })).toBeNull();
    expect(openProject(project, { network }).state).toBe(state);
    expect(existsSync(state)).toBe(true);
  });

  test('without a local disk, the error names a remedy', () => {
    const message = refusal(() => openProject(project, { network: () => 'Lustre' }));
    expect(message).toMatch(/Lustre.*local disk.*XDG_STATE_HOME.*--queue/);
    expect(existsSync(join(project, '.gpu-owner'))).toBe(false);
  });

  test('a damaged pointer is refused', () => {
    openProject(project, { network });
    for (const text of ['', 'nonsense', '{}', '{"host": "a", "path": "relative"}', 'null']) {
      writeFileSync(join(project, '.gpu-owner', 'elsewhere.json'), text);
      expect(refusal(() => openProject(project, { network }))).toMatch(/Correct it/);
    }
  });
});

const whyNot = whyNotNobody();

describe.skipIf(whyNot !== null)(`other users${because(whyNot)}`, () => {
  type ProjectModule = typeof import('../../../lib/sweeps/project/project.ts');
  type QueueModule = typeof import('../../../lib/sweeps/queue/index.ts');
  const asNobody = actAs<ProjectModule>(NOBODY, 'lib/sweeps/project/project.ts');
  const queueAsNobody = actAs<QueueModule>(NOBODY, 'lib/sweeps/queue/index.ts');
  const refused = (message: RegExp) => ({ code: 'ERR_QUEUE', message: expect.stringMatching(message) });
  beforeEach(() => chmodSync(directory, 0o755));

  test('a project that may not be written to is refused', async () => {
    const refusal = refused(/permission denied.*belongs to root.*--queue/);
    await expect(asNobody('openProject', project)).rejects.toMatchObject(refusal);
    expect(await asNobody('findProject', project)).toBeNull();
  });

  test('a queue of another user is refused', async () => {
    await (await openQueue(null, project)).close();
    const refusal = refused(/permission|read-only for you/);
    await expect(queueAsNobody('openQueue', null, project)).rejects.toMatchObject(refusal);
  });

  test('a queue that others have put into a shared directory is refused', async () => {
    mkdirSync(join(project, '.gpu-owner'));
    chownSync(join(project, '.gpu-owner'), NOBODY, NOBODY);
    expect(refusal(() => findProject(project))).toMatch(/run any command as you/);
    chownSync(project, NOBODY, NOBODY); // the project is theirs now
    expect(findProject(project)?.state).toBe(join(project, '.gpu-owner'));
    chownSync(join(project, '.gpu-owner'), 0, 0);
    expect((await asNobody('findProject', project))?.state).toBe(join(project, '.gpu-owner'));
  });

  test('a directory that everybody may write to is refused, or mended by its owner', async () => {
    const state = join(project, '.gpu-owner');
    const warnings: string[] = [];
    onWarning((message) => warnings.push(message));
    openProject(project);
    chmodSync(state, 0o777);
    const tooOpen = refused(/everybody may write.*chmod o-rwx/);
    await expect(asNobody('findProject', project)).rejects.toMatchObject(tooOpen);
    findProject(project);
    expect(warnings).toEqual([expect.stringMatching(/Its mode was changed/)]);
    expect((statSync(state).mode & 0o7777).toString(8)).toBe('700');
    chmodSync(project, 0o777);
    for (const isOnServer of [false, true])
      expect(refusal(() => openProject(project, { isOnServer }))).toMatch(
        /everybody may write to .*chmod o-w/,
      );
    chmodSync(project, 0o1777);
    expect(refusal(() => findProject(project))).toMatch(/everybody may write/);
  });

  test('a project that a group shares is accepted', () => {
    const state = join(project, '.gpu-owner');
    openProject(project);
    expect((statSync(state).mode & 0o7777).toString(8)).toBe('700');
    rmSync(state, { recursive: true });
    chownSync(project, 0, 1234);
    chmodSync(project, 0o775);
    openProject(project);
    expect(statSync(state).gid).toBe(1234);
    expect((statSync(state).mode & 0o7777).toString(8)).toBe('2770');
    chownSync(state, NOBODY, 1234); // one of them was the first
    expect(findProject(project)?.state).toBe(state);
  });

  test('a read-only project directory is refused', () => {
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'ro,mode=755', 'tmpfs', project]);
    try {
      expect(refusal(() => openProject(project))).toMatch(/read-only/);
      expect(findProject(project)).toBeNull();
    } finally {
      spawnSync('umount', [project]);
    }
  });

  test('a full disk is refused', () => {
    spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64k,nr_inodes=1,mode=755', 'tmpfs', project]);
    try {
      expect(refusal(() => openProject(project))).toMatch(/no space/);
    } finally {
      spawnSync('umount', [project]);
    }
  });
});
