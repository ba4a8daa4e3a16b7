// Rules for the repository as a whole: its lock file, its workflows, and the files that contributors rely on.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { whyUnchanged } from './support/changes.ts';
import { root } from './support/machine.ts';

const read = (path: string) => readFileSync(join(root, path), 'utf8');
const { scripts } = JSON.parse(read('package.json'));
const lock = read('package-lock.json');

/** Why a test that needs a program is skipped; '' where it isn't. Other versions than `version` find other mistakes. */
function whyNot(program: string, version = ''): string {
  const { stdout } = spawnSync(program, ['--version'], { encoding: 'utf8' });
  return stdout?.includes(version) ? '' : ` (skipped: ${`${program} ${version}`.trim()} is not installed)`;
}

/** As whyNot(), for a linter that `npm run ci:tools` installs from PyPI. */
function whyNotPinned(linter: string): string {
  const version = new RegExp(`^${linter}==(.+)$`, 'm').exec(read('python/requirements-lint.txt'))?.[1];
  if (version === undefined) throw new Error(`python/requirements-lint.txt pins no ${linter}`);
  return whyNot(linter, version);
}

function run(program: string, ...args: string[]): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync(program, args, { cwd: root, encoding: 'utf8' });
  return { status, output: stdout + stderr };
}

test('package-lock.json names no registry', () => {
  expect(lock).not.toMatch(/"resolved":/);
  expect(lock).not.toMatch(/https?:\/\/[^"]*registry/);
});

describe('workflows', () => {
  const directory = '.github/workflows';
  const workflows = readdirSync(join(root, directory));

  test.each(workflows)(
    'have a command of package.json, or npm ci, in each step that runs something: %s',
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
      // Commands of a matrix.
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

/** mypy takes 20 s of a processor. */
const unchangedPython = whyUnchanged(['python']);
const LINTED: [what: string, missing: string, command: string[]][] = [
  ['Python code', whyNotPinned('ruff'), ['ruff', 'check']],
  [
    'types of Python code',
    unchangedPython === null ? whyNotPinned('mypy') : ` (skipped: ${unchangedPython})`,
    ['sh', '-c', 'cd python && mypy'],
  ],
  [
    'format of C++ code',
    whyNotPinned('clang-format'),
    ['npm', 'run', '--silent', 'lint:native', '--', '--format'],
  ],
];
for (const [what, missing, [program = '', ...words]] of LINTED) {
  test.skipIf(missing !== '')(`linters find no mistake in the ${what}${missing}`, () => {
    const { status, output } = run(program, ...words);
    expect(status, output).toBe(0);
  });
}

test.each(['.ci/run', '.ci/tools', '.githooks/pre-commit'])('%s is a script without mistakes', (path) => {
  expect(existsSync(join(root, path))).toBe(true);
  expect(run('bash', '-n', path)).toEqual({ status: 0, output: '' });
  if (whyNot('shellcheck') === '') expect(run('shellcheck', path)).toEqual({ status: 0, output: '' });
});

/** Fixed pauses of 100 ms and more that tests have. A smaller number is welcome, a larger one isn't: wait for a condition. */
const FIXED_PAUSES = 81;

test('no test has a new fixed pause', () => {
  const files = readdirSync(join(root, 'test'), { recursive: true, encoding: 'utf8' });
  const pauses = files
    .filter((path) => path.endsWith('.ts'))
    .flatMap((path) =>
      [...read(join('test', path)).matchAll(/\b(?:pause|sleep)\((\d[\d_]*)\)/g)]
        .filter(([, ms = '']) => Number(ms.replaceAll('_', '')) >= 100)
        .map(([call]) => `${path}: ${call}`),
    );
  const advice = `wait for a condition with until() in place of a pause:\n${pauses.join('\n')}`;
  expect(pauses.length, advice).toBeLessThanOrEqual(FIXED_PAUSES);
});

test('no process changes its user: Node.js with io_uring, such as Debian’s, refuses that', () => {
  const files = ['lib', 'test'].flatMap((directory) =>
    readdirSync(join(root, directory), { recursive: true, encoding: 'utf8' }).map((path) =>
      join(directory, path),
    ),
  );
  const calls = files
    .filter((path) => /\.(ts|js|mjs)$/.test(path))
    .flatMap((path) =>
      [...read(path).matchAll(/\bprocess\.(?:sete?[ug]id|setgroups|initgroups)\b\s*\??\.?\(/g)].map(
        ([call]) => `${path}: ${call}`,
      ),
    );
  expect(calls, 'run it as another user with actAs() of test/support/bundle.ts').toEqual([]);
});
