// What holds for the repository as a whole: its pins, its workflows, and the files that contributors rely on.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { BULLMQ_VERSION, checkVersion } from '../lib/experiments/queue/bullmq/tickets.ts';
import { root } from './support/machine.ts';

const read = (path: string) => readFileSync(join(root, path), 'utf8');
const { dependencies, scripts } = JSON.parse(read('package.json'));
const lock = read('package-lock.json');

/** Why a test that needs a program is skipped; '' where it isn't. */
function whyNot(program: string): string {
  return spawnSync(program, ['--version'], { stdio: 'ignore' }).error === undefined
    ? ''
    : ` (skipped: ${program} is not installed)`;
}

function run(program: string, ...args: string[]): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync(program, args, { cwd: root, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

describe('BullMQ, whose scripts the Redis queue runs inside its own', () => {
  test('package.json and package-lock.json pin exactly the version that the code expects', () => {
    expect(dependencies.bullmq).toBe(BULLMQ_VERSION);
    const { packages } = JSON.parse(lock);
    expect(packages[''].dependencies.bullmq).toBe(BULLMQ_VERSION);
    expect(packages['node_modules/bullmq'].version).toBe(BULLMQ_VERSION);
    expect(createRequire(import.meta.url)('bullmq/package.json').version).toBe(BULLMQ_VERSION);
  });

  test('another version is refused with a sentence that names both', () => {
    checkVersion(BULLMQ_VERSION);
    expect(() => checkVersion('6.8.0')).toThrow(
      expect.objectContaining({
        code: 'ERR_QUEUE',
        message: expect.stringMatching(new RegExp(`need BullMQ ${BULLMQ_VERSION}, but version 6\\.8\\.0`)),
      }),
    );
  });
});

test('package-lock.json names no registry', () => {
  expect(lock).not.toMatch(/"resolved":/);
  expect(lock).not.toMatch(/https?:\/\/[^"]*registry/);
});

describe('workflows', () => {
  const directory = '.github/workflows';
  const workflows = readdirSync(join(root, directory));

  test.each(workflows)(
    '%s: each step that runs something is a command of package.json, or npm ci',
    (name) => {
      const commands = [...read(join(directory, name)).matchAll(/^\s*(?:- )?run: (.*)$/gm)].map(
        ([, command]) => command as string,
      );
      for (const command of commands) {
        const script = /^npm (?:run (\S+)|(test|ci))/.exec(command);
        expect(script, command).not.toBeNull();
        const asked = script?.[1] ?? script?.[2] ?? '';
        if (asked !== 'ci' && !asked.includes('${{')) expect(Object.keys(scripts), command).toContain(asked);
      }
      // Of a matrix.
      for (const [, list = ''] of read(join(directory, name)).matchAll(/^\s*command: \[(.*)\]$/gm)) {
        for (const [, asked] of list.matchAll(/'?([\w:-]+)'?/g))
          expect(Object.keys(scripts)).toContain(asked);
      }
    },
  );

  const reason = whyNot('actionlint');
  test.skipIf(reason !== '')(`actionlint finds nothing${reason}`, () => {
    expect(run('actionlint')).toEqual({ status: 0, output: '' });
  });
});

const reason = whyNot('ruff') || whyNot('mypy');
test.skipIf(reason !== '')(`ruff and mypy find nothing in python/${reason}`, () => {
  const { status, output } = run('npm', 'run', '--silent', 'lint:python');
  expect(status, output).toBe(0);
});

test.each(['.ci/run', '.ci/tools', '.githooks/pre-commit'])('%s is a script without mistakes', (path) => {
  expect(existsSync(join(root, path))).toBe(true);
  expect(run('bash', '-n', path)).toEqual({ status: 0, output: '' });
  if (whyNot('shellcheck') === '') expect(run('shellcheck', path)).toEqual({ status: 0, output: '' });
});
