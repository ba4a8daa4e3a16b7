// The rules of style that a program can check: names of limits, line length of pages, the form of help texts.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './support/machine.ts';

const CODE =
  /^(?:lib|web|native|test|bench|scripts|python|examples)\/.*\.(?:tsx?|js|mjs|cjs|cc|c|h|py)$|^vitest\.config\.ts$/;
const MAX_COLUMNS = 120;

const paths = spawnSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: root,
  encoding: 'utf8',
})
  .stdout.split('\n')
  .filter((path) => path !== '' && existsSync(join(root, path)));

interface Line {
  path: string;
  number: number;
  text: string;
}

function linesOf(path: string): Line[] {
  return readFileSync(join(root, path), 'utf8')
    .split('\n')
    .map((text, index) => ({ path, number: index + 1, text }));
}

const files = new Map(
  paths.filter((path) => CODE.test(path) || path.endsWith('.md')).map((path) => [path, linesOf(path)]),
);

/** The lines of files of a kind that break a rule. */
function violations(kind: RegExp, isWrong: (lines: Line[]) => Line[]): string[] {
  return [...files]
    .filter(([path]) => kind.test(path))
    .flatMap(([, lines]) => isWrong(lines))
    .map(({ path, number, text }) => `${path}:${number}: ${text.trim()}`);
}

test('limits are named MAX_… and …_TIMEOUT_MS', () => {
  const name = /\b(?:MOST|LONGEST)(?:_[A-Z0-9_]+)?\b(?!`)|\b(?:[A-Z]+_)?PATIENCE\b(?!`)/;
  const isWrong = (lines: Line[]) => lines.filter(({ text }) => name.test(text));
  const inCode = violations(CODE, isWrong);
  expect(inCode.filter((line) => !line.startsWith('test/writing.test.ts'))).toEqual([]);
});

test('no limit of the C++ part is named most_… or longest_…', () => {
  const isWrong = (lines: Line[]) => lines.filter(({ text }) => /\b(?:most|longest)_\w/.test(text));
  expect(violations(/^native\/.*\.(?:cc|c|h)$/, isWrong)).toEqual([]);
});

test(`lines of Markdown have at most ${MAX_COLUMNS} columns, tables and code excepted`, () => {
  const isWrong = (lines: Line[]) => {
    let inCode = false;
    return lines.filter(({ text }) => {
      if (/^\s*```/.test(text)) inCode = !inCode;
      // A link alone can't be broken; figures are generated.
      const isWhole = /^\s*(?:\||!?\[[^\]]*\]\([^)]*\)[.,:]?$|<!--)|<!-- figure/.test(text);
      return !inCode && !isWhole && text.length > MAX_COLUMNS;
    });
  };
  expect(violations(/\.md$/, isWrong)).toEqual([]);
});

test('the README and the map of the source have at most 150 lines', () => {
  for (const path of ['README.md', 'docs/architecture.md']) {
    expect(files.get(path)?.length, path).toBeLessThanOrEqual(151);
  }
});

/** The output of `gpu-owner COMMAND --help`. */
function help(...command: string[]): string {
  const { stdout } = spawnSync(join(root, 'bin/gpu-owner.cjs'), [...command, '--help', '--all'], {
    encoding: 'utf8',
  });
  return stdout;
}

function listedCommands(text: string): [name: string, description: string][] {
  const list = text.split('Commands:\n')[1]?.split('\n\n')[0] ?? '';
  return [...list.matchAll(/^ {2}(\w+) +(.*)$/gm)].map(([, name = '', description = '']) => [
    name,
    description,
  ]);
}

test.each([[[]], [['exp']]])('help of %j: commands are described by a verb phrase in lower case', (group) => {
  const commands = listedCommands(help(...group));
  expect(commands.length).toBeGreaterThan(5);
  for (const [name, description] of commands) {
    // Verbs in the infinitive: what the command does.
    expect(description, name).toMatch(/^[a-z]+ /);
    expect(description, name).not.toMatch(/\.$/);
  }
});

test('help texts of options begin in lower case and have no full stop', () => {
  const names = listedCommands(help()).map(([name]) => [name]);
  const inner = listedCommands(help('exp')).map(([name]) => ['exp', name]);
  const wrong = [...names, ...inner].flatMap((command) => {
    // An option, its description, and the lines that go on with it.
    const options = help(...command).matchAll(/^ {2,6}(?:-\w, )?--[\w-]+.*(?:\n {20,}\S.*)*/gm);
    return [...options].flatMap(([option]) => {
      const description = option.replace(/^\s*\S+(?: \S+)*?(?: {2,}|\n\s+)/, '').replaceAll(/\s+/g, ' ');
      // Sentences that follow a semicolon or a full stop inside are as they are; names and units may begin with a capital.
      const isWrong = /^[A-Z][a-z]/.test(description) || /[^.]\.$/.test(description);
      return isWrong ? [`${command.join(' ')}: ${description}`] : [];
    });
  });
  expect(wrong).toEqual([]);
});
