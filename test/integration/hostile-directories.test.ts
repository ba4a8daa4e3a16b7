// The owner of the directories around locks exchanges them for symbolic links to a directory of root's, as fast as possible,
// while root claims GPUs there. Nothing may ever come into that directory, change its mode, or go.
import { chmodSync, chownSync, lstatSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { CONVENTIONS } from '../../lib/config/index.ts';
import { Machine, NOBODY, output, python, type Starting, whyNotNobody } from '../support/machine.ts';
import { SHARED_DIRECTORIES } from '../support/other-tools.ts';
import { fixture } from './waiters.ts';

/** How long each way is tried. */
const SECONDS = process.env.GPU_OWNER_SOAK ? 120 : 1;
/** When to give up, in ms. */
const LIMIT = SECONDS * 1000 + 60_000;
const UUID = 'GPU-00000000-0000-4000-8000-000000000000';

let machine: Machine;
let target: string;
let hostile: string;
beforeEach(() => {
  machine = new Machine(1);
  target = makeTarget();
  hostile = make(join(machine.directory, 'hostile'), 0o755, NOBODY);
  make(join(hostile, 'trash'), 0o755, NOBODY);
});
afterEach(() => machine.close());

function make(path: string, mode: number, owner = 0): string {
  mkdirSync(path, { recursive: true });
  chmodSync(path, mode);
  chownSync(path, owner, owner);
  return path;
}

/** Files that would be replaced, written to or removed, had claims been led there. */
function makeTarget(): string {
  const directory = make(join(machine.directory, 'target'), 0o755);
  const stale = JSON.stringify({ owner: 0, 'gpu-owner': { uuid: UUID, generation: 1 } });
  const files: Record<string, string> = {
    'gpu_0.lock': '4194303\n',
    'gpu_0.json': stale,
    '.seen-by-gpu-owner': '',
    'acquisition.lock': '',
    [`${UUID}.lease`]: '',
    'gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users': '',
  };
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(join(directory, name), text);
    utimesSync(join(directory, name), new Date('2020-01-01'), new Date('2020-01-01'));
  }
  for (const name of ['gpu_locks', 'safe_gpu', 'locks', '.gpu_locks']) make(join(directory, name), 0o700);
  return directory;
}

/** A directory's time of change tells of everything that was ever made, renamed or removed in it, though it be gone again. */
function look(path: string): string[] {
  const { mode, uid, size, ctimeNs, mtimeNs, nlink } = lstatSync(path, { bigint: true });
  const line = [path, mode.toString(8), uid, size, ctimeNs, mtimeNs, nlink].join(' ');
  if (!lstatSync(path).isDirectory()) return [line];
  return [
    line,
    ...readdirSync(path)
      .sort()
      .flatMap((name) => look(join(path, name))),
  ];
}

async function swap(directories: string[], trash = join(hostile, 'trash')): Promise<void> {
  const words = [python, fixture('swapper.py'), target, trash, ...directories];
  await output(machine.start(words, { uid: NOBODY }), /swapping/);
}

/**
 * Claims of root, for some time and until enough was seen: in one process, and by commands whose keepers remove the marks.
 * @param least how many claims must be granted, and how many refused
 */
async function claim(starting: Starting, options: object, least: { granted: number; refused: number }) {
  const words = [SECONDS, LIMIT, least, options].map((value) => JSON.stringify(value));
  const script = machine.run([process.execPath, fixture('claim-often.mjs'), ...words], starting);
  const end = performance.now() + SECONDS * 1000;
  for (let ran = 0; performance.now() < end || ran === 0; ) {
    const { code, stderr } = await machine.runCommand(
      ['run', '--no-wait', '--placeholder', 'none', '--', 'true'],
      starting,
    );
    expect([0, 73, 75], stderr).toContain(code);
    if (code === 0) ran++;
    expect(performance.now()).toBeLessThan(end + LIMIT);
  }
  const { stdout, stderr, code } = await script;
  expect([code, stdout.trim()], stderr).toEqual([0, 'enough']);
}

const why = whyNotNobody();
describe.skipIf(why !== null)(
  `directories that another user exchanges for links${why ? ` (${why})` : ''}`,
  { timeout: LIMIT + 60_000 },
  () => {
    test('lead no claim astray as directories of other tools, nor as .gpu_locks in the working directory', async () => {
      const root = make(join(machine.directory, 'others'), 0o755);
      const project = join(root, machine.directory);
      const places = [...SHARED_DIRECTORIES.map(({ path }) => join(root, path)), join(project, '.gpu_locks')];
      for (const path of places) {
        make(dirname(path), 0o755, NOBODY);
        make(path, 0o777); // root's own, as it was left there by a claim
      }
      const before = look(target);
      await swap(places);
      const starting = {
        cwd: machine.directory,
        env: { GPU_OWNER_CONVENTIONS_ROOT: root, GPU_OWNER_CONVENTIONS: CONVENTIONS.join() },
      };
      await claim(starting, { conventions: CONVENTIONS }, { granted: 3, refused: 0 });
      expect(look(target)).toEqual(before);
    });

    test('lead no claim astray as lock directories', async () => {
      const before = look(target);
      const parent = make(join(hostile, 'parent'), 0o755, NOBODY);
      const locks = make(join(parent, 'locks'), 0o1777);
      await swap([locks]);
      await claim({ env: { GPU_OWNER_LOCK_DIR: locks } }, {}, { granted: 3, refused: 1 });
      expect(look(target)).toEqual(before);
    });
  },
);

describe.skipIf(why !== null)(`.gpu_locks of another user${why ? ` (${why})` : ''}`, () => {
  const here = () => ({ cwd: machine.directory });
  const RUN = ['run', '--no-wait', '--placeholder', 'none', '--', 'echo', 'it ran'];
  let place: string;
  beforeEach(() => {
    place = make(
      join(machine.directory, 'machines', machine.name, 'root', machine.directory, '.gpu_locks'),
      0o777,
      NOBODY,
    );
    for (let up = dirname(place); up !== join(machine.directory, 'machines'); up = dirname(up))
      chmodSync(up, 0o1777);
    writeFileSync(join(place, 'gpu_0.lock'), String(process.pid));
  });

  test('in root’s working directory is ignored, with a warning to root', async () => {
    const { code, stdout, stderr } = await machine.runCommand(RUN, here());
    expect([code, stdout]).toEqual([0, 'it ran\n']);
    expect(stderr).toMatch(
      /warning: .*\/\.gpu_locks belongs to nobody: its locks are ignored, and this claim isn't shown there/,
    );
    expect(stderr.match(/belongs to nobody/g)).toHaveLength(1);
    expect(readdirSync(place)).toEqual(['gpu_0.lock']);
  });

  test('counts for that user, and root’s for everybody', async () => {
    expect((await machine.runCommand(RUN, { ...here(), uid: NOBODY })).code).toBe(75);
    chownSync(place, 0, 0);
    for (const uid of [0, NOBODY]) expect((await machine.runCommand(RUN, { ...here(), uid })).code).toBe(75);
  });

  test('marks that root makes there are for others to read only', async () => {
    chownSync(place, 0, 0);
    writeFileSync(join(place, 'gpu_0.lock'), '4194303');
    const child = machine.startCommand(['hold', '--placeholder', 'none'], here());
    await output(child, /visibleDevices/);
    expect((lstatSync(join(place, 'gpu_0.lock')).mode & 0o777).toString(8)).toBe('644');
    child.stdin?.end();
  });
});
