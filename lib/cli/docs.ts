import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { packageRoot } from '../native.ts';
import { closest, fitColumns, showValue, usageError } from '../platform/index.ts';
import type { Command } from './command.ts';
import type { OptionGroup, Parsed } from './command-line.ts';
import { pageWidth, print } from './output.ts';

const DIRECTORY = join(packageRoot, 'docs');

/** The names of all pages. */
function pages(): string[] {
  if (!existsSync(DIRECTORY)) return [];
  const files = readdirSync(DIRECTORY).filter((name) => /^[a-z].*\.md$/.test(name));
  return files.map((name) => name.slice(0, -'.md'.length)).sort();
}

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

function docs({ positionals: [word, more] }: Parsed<typeof GROUPS>): void {
  if (more !== undefined) throw usageError(`unexpected argument ${showValue(more)}: docs takes one page`);
  const known = pages();
  if (known.length === 0) {
    throw new GPUOwnerError(
      'ERR_INTERNAL',
      `this package has no pages: ${DIRECTORY} is missing. Install it again.`,
    );
  }
  const title = (page: string) => /^# (.*)$/m.exec(textOf(page))?.[1] ?? '';
  print(word === undefined ? table(known.map((page) => [page, title(page)])) : textFor(word, known));
}

/** The page that a word names. @throws ERR_INVALID_ARGUMENT */
function textFor(word: string, known: readonly string[]): string {
  // As links name them, too: docs/jobs.md#states
  const [path = ''] = word.toLowerCase().split('#');
  const page = path.replace(/^.*\/|\.md$/g, '');
  if (!known.includes(page)) {
    const meant = closest(page, known);
    throw usageError(
      `there is no page ${showValue(page)}${meant === null ? '; `gpu-owner docs` lists them' : `; did you mean '${meant}'?`}`,
    );
  }
  return readable(textOf(page));
}

function textOf(page: string): string {
  return readFileSync(join(DIRECTORY, `${page}.md`), 'utf8');
}

function table(rows: readonly [name: string, title: string][]): string {
  const width = Math.max(...rows.map(([name]) => name.length)) + 2;
  return rows.map(([name, title]) => fitColumns(name.padEnd(width) + title, pageWidth())).join('\n');
}

/** Without what only a browser shows: pictures and comments. */
function readable(text: string): string {
  return text
    .replace(/<!--.*?-->\n?/gs, '')
    .replace(/^!\[.*\]\(.*\)\n/gm, '')
    .replace(/\n{3,}/g, '\n\n')
    .trimEnd();
}

export const COMMAND: Command = {
  usage: '[PAGE]',
  about: 'Prints a page of the documentation of this version. Without a page it lists all.',
  groups: GROUPS,
  operands: { first: pages() },
  run: docs,
};
