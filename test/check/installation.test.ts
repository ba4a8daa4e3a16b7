import { chmodSync, chownSync, copyFileSync, mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { sentences } from '../../lib/check/finding.ts';
import { binaries } from '../support/binaries.ts';
import { because, type Diagnosis, diagnose, diagnosePart, said } from '../support/doctor.ts';
import { Machine, NOBODY, whyNotNobody } from '../support/machine.ts';

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

test('a missing native part is told once, as a claim tells it', async () => {
  const diagnosis = await diagnose(machine, { env: { GPU_OWNER_BUILD: join(machine.directory, 'nothing') } });
  expect(diagnosis.ids).toEqual(['ERR_UNSUPPORTED_PLATFORM']);
  expect([diagnosis.code, said(diagnosis, 'ERR_UNSUPPORTED_PLATFORM')]).toEqual([
    1,
    expect.stringMatching(/The native addon at .*can't be loaded/),
  ]);
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
