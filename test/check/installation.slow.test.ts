import {
  chmodSync,
  chownSync,
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { sentences } from '../../lib/check/installation.ts';
import { binaries } from '../support/binaries.ts';
import { because, type Diagnosis, diagnose, diagnosePart, said } from '../support/doctor.ts';
import { Machine, NOBODY, root, whyNotNobody } from '../support/machine.ts';

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

test('what an error says is taken apart into what is and what to do', () => {
  expect(sentences('it is so. Do this.')).toEqual({ text: 'It is so.', remedy: 'Do this.' });
  expect(sentences('in /a.b is nothing. `x` does it. Or not')).toEqual({
    text: 'In /a.b is nothing.',
    remedy: '`x` does it. Or not',
  });
  expect(sentences('it is so')).toEqual({ text: 'It is so', remedy: null });
});
