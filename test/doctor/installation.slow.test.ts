import {
  chmodSync,
  chownSync,
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { sentences } from '../../lib/doctor/installation.ts';
import { binaries } from '../support/binaries.ts';
import { because, type Diagnosis, diagnose, diagnosePart, diagnosisOf, said } from '../support/doctor.ts';
import { command, Machine, NOBODY, root, whyNotNobody } from '../support/machine.ts';

const noOtherUser = whyNotNobody();

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

/** Another build, that is the same but for what is done to it. */
function build(...without: string[]): string {
  const directory = join(machine.directory, 'build');
  mkdirSync(directory);
  for (const name of readdirSync(binaries())) {
    if (!without.includes(name)) symlinkSync(join(binaries(), name), join(directory, name));
  }
  return directory;
}

function with_(env: Record<string, string>): Promise<Diagnosis> {
  return diagnosePart(machine, 'installation', { env });
}

test('the doctor names versions and places', async () => {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  expect(said(await diagnose(machine), 'version')).toContain(
    `gpu-owner ${version} in ${root}, Node.js ${process.versions.node} (${process.execPath})`,
  );
});

test('a note says that the GPUs are simulated', async () => {
  expect(said(await diagnose(machine), 'simulated')).toMatch(/machine '2'.*unset GPU_OWNER_SIMULATE/);
  const { findings } = await diagnose(machine, { env: { GPU_OWNER_SIMULATE: undefined } });
  expect(findings.map(({ id }) => id)).not.toContain('simulated');
});

test('a missing native part is told once, and the checks that need it are skipped', async () => {
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_BUILD: join(machine.directory, 'nothing') } });
  expect(diagnosis.code).toBe(1);
  expect(diagnosis.ids.filter((id) => id !== 'check-skipped')).toEqual(['native-missing']);
  expect(
    diagnosis.findings.filter(({ id }) => id === 'check-skipped').map(({ subject }) => subject),
  ).toContain('driver');
  expect(said(diagnosis, 'native-missing')).toMatch(
    /The native addon at .*can't be loaded.*Install gpu-owner again/,
  );
});

test.each([
  ['gpu-owner-keeper', /gpu-owner-keeper is missing; without it `gpu-owner run` and `hold` fail/],
  ['gpu-owner-placeholder', /gpu-owner-placeholder is missing; without it GPUs of a command are not kept/],
  ['gpu-owner-simulator', /gpu-owner-simulator is missing; without them, there are no simulated GPUs/],
])('a missing %s is a problem', async (name, words) => {
  const diagnosis = await with_({ GPU_OWNER_BUILD: build(name) });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['program-missing'] });
  expect(said(diagnosis, 'program-missing')).toMatch(words);
});

test('a keeper that may not be executed is a problem', async () => {
  const directory = build();
  rmSync(join(directory, 'gpu-owner-keeper'));
  copyFileSync(join(binaries(), 'gpu-owner-keeper'), join(directory, 'gpu-owner-keeper'));
  chmodSync(join(directory, 'gpu-owner-keeper'), 0o644);
  const diagnosis = await with_({ GPU_OWNER_BUILD: directory });
  expect(diagnosis).toMatchObject({ code: 1, ids: ['program-missing'] });
  expect(said(diagnosis, 'program-missing')).toMatch(/may not be executed/);
});

test('an installation that others may not enter is a note', async () => {
  const directory = build();
  const open = await with_({ GPU_OWNER_BUILD: directory });
  chmodSync(directory, 0o700);
  const closed = await with_({ GPU_OWNER_BUILD: directory });
  expect(said(closed, 'installation-private')).toMatch(
    noOtherUser === null ? /build belongs to root with mode 0700.*\/opt\/gpu-owner/ : /Other users can't run/,
  );
  if (noOtherUser === null) expect(open.findings.map(({ id }) => id)).not.toContain('installation-private');
});

describe('an installation that others can change', () => {
  const changeable = async (directory: string) =>
    (await with_({ GPU_OWNER_BUILD: directory })).findings
      .filter(({ id }) => id === 'installation-changeable')
      .map(({ text }) => text)
      .join('\n');
  /** As build(), with a keeper of its own. */
  const copy = () => {
    const directory = build('gpu-owner-keeper');
    copyFileSync(join(binaries(), 'gpu-owner-keeper'), join(directory, 'gpu-owner-keeper'));
    chmodSync(join(directory, 'gpu-owner-keeper'), 0o755);
    return directory;
  };

  test('doctor: a program that everybody may write to is a warning', async () => {
    const directory = copy();
    expect(await changeable(directory)).not.toContain(directory);
    chmodSync(join(directory, 'gpu-owner-keeper'), 0o777);
    expect(await changeable(directory)).toMatch(/^Everybody can change .*gpu-owner-keeper .* mode 0777/);
  });

  test('doctor: a directory in which everybody may rename is a warning, a sticky one is not', async () => {
    const directory = copy();
    chmodSync(directory, 0o777);
    expect(await changeable(directory)).toMatch(/^Everybody can change .*\/build belongs to .* mode 0777/);
    chmodSync(directory, 0o1777);
    expect(await changeable(directory)).not.toContain(directory);
  });

  test.skipIf(noOtherUser !== null)(
    `doctor: another user's program is a warning${because(noOtherUser)}`,
    async () => {
      const directory = copy();
      chownSync(join(directory, 'gpu-owner-keeper'), NOBODY, NOBODY);
      expect(await changeable(directory)).toMatch(/^nobody can change what runs as you/);
      // The owner is not warned of himself.
      const own = await diagnosePart(machine, 'installation', {
        uid: NOBODY,
        env: { GPU_OWNER_BUILD: directory },
      });
      expect(own.findings.map(({ id }) => id)).not.toContain('installation-changeable');
    },
  );
});

describe('limits', () => {
  const limited = async (limit: string, words: string[] = []): Promise<Diagnosis> => {
    const { code, stdout, stderr } = await machine.run([
      ...words,
      'prlimit',
      limit,
      process.execPath,
      command,
      'doctor',
      '--json',
    ]);
    return diagnosisOf(code, stdout, stderr);
  };

  test('a low limit of open files is found', async () => {
    const low = await limited('--nofile=150:150');
    expect(low).toMatchObject({ code: 1, ids: ['limit-files'] });
    expect(said(low, 'limit-files')).toMatch(/At most 150 files may be open.*LimitNOFILE=/);
    // The soft limit doesn't matter: Node.js raises it.
    expect((await limited('--nofile=150:4096')).ids).toEqual([]);
  });

  test.skipIf(noOtherUser !== null)(`a low limit of processes is found${because(noOtherUser)}`, async () => {
    // A uid that no other process uses. The threads of the doctor's own processes count.
    const someone = ['setpriv', '--reuid=54321', '--regid=54321', '--clear-groups', '--'];
    let low = await limited('--nproc=84:84', someone);
    // How many of them live when that is checked depends on what else the machine does.
    for (let limit = 78; limit >= 54 && !low.ids.includes('limit-processes'); limit -= 6) {
      low = await limited(`--nproc=${limit}:${limit}`, someone);
    }
    expect(low.ids).toContain('limit-processes');
    expect(said(low, 'limit-processes')).toMatch(/Only \d+ of the \d+ processes and threads.*ulimit -u/);
    expect((await limited('--nproc=2000:2000', someone)).ids).toEqual([]);
  });
});

test('what an error says is taken apart into what is and what to do', () => {
  expect(sentences('it is so. Do this.')).toEqual({ text: 'It is so.', remedy: 'Do this.' });
  expect(sentences('in /a.b is nothing. `x` does it. Or not')).toEqual({
    text: 'In /a.b is nothing.',
    remedy: '`x` does it. Or not',
  });
  expect(sentences('it is so')).toEqual({ text: 'It is so', remedy: null });
});
