// The rules of style that a program can check: doc comments, names of limits, line length of pages, the form of help texts.
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type Sentence, sentencesInComments, sentencesInPage } from './support/comments.ts';
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

/** A sentence without a noun at its beginning; a question may begin so. */
const NAMELESS = /^(?:it|its|those|whoever|somebody|nobody|who|whose|what|of)\b(?!.*\?$)/i;
const NOBODY = /\b(?:nobody|somebody|whoever)\b/i;

function sentences(kind: RegExp, split: (path: string, text: string) => Sentence[]): string[] {
  return [...files]
    .filter(([path]) => kind.test(path))
    .flatMap(([path, lines]) =>
      split(path, lines.map(({ text }) => text).join('\n')).map(
        ({ line, text }) => `${path}:${line}: ${text}`,
      ),
    );
}

test('sentences of comments and pages are found', () => {
  const source = [
    '/** Ends a job. It gets',
    ' * SIGTERM first. @returns when it',
    ' * - who waits',
    ' */',
    'const url = "http://a // of"; // what is left',
    '  *generator() {}',
    '// Who (e.g. root) waits? A job.',
    '// Those.',
  ].join('\n');
  expect(sentencesInComments('a.ts', source)).toEqual([
    { line: 1, text: 'Ends a job.' },
    { line: 1, text: 'It gets SIGTERM first. @returns when it' },
    { line: 3, text: 'who waits' },
    { line: 5, text: 'what is left' },
    { line: 7, text: 'Who (e.g. root) waits?' },
    { line: 7, text: 'A job.' },
    { line: 8, text: 'Those.' },
  ]);
  expect(sentencesInComments('a.py', '"""Claims.\n\nIts end."""\nx = 1  # of a job\n')).toEqual([
    { line: 1, text: 'Claims.' },
    { line: 3, text: 'Its end.' },
    { line: 4, text: 'of a job' },
  ]);
  expect(sentencesInPage('# Of it\n\nOne. It is\none.\n- Who waits\n\n| it |\n')).toEqual([
    { line: 3, text: 'One.' },
    { line: 3, text: 'It is one.' },
    { line: 5, text: 'Who waits' },
  ]);
});

const withoutPath = (sentence: string) => sentence.replace(/^\S+ /, '');

test('a sentence of a comment has a noun: none begins with it, those, who, what, of, nobody, somebody, whoever', () => {
  const found = sentences(CODE, sentencesInComments).filter((each) => NAMELESS.test(withoutPath(each)));
  expect(found).toEqual([]);
});

test('comments name who or what is meant: not nobody, somebody, whoever', () => {
  const found = sentences(CODE, sentencesInComments).filter((each) => NOBODY.test(withoutPath(each)));
  expect(found).toEqual([]);
});

test('a sentence of a page has a noun', () => {
  const found = sentences(
    /^(?!CHANGELOG)(?:python\/|docs\/.*|examples\/.*|native\/.*)?[\w-]+\.md$/,
    (_, text) => sentencesInPage(text),
  );
  expect(found.filter((each) => NAMELESS.test(withoutPath(each)))).toEqual([]);
});

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
