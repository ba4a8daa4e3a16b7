import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { closest, fitColumns, showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { packageRoot } from './installation.ts';
import { type Parsed, usage } from './options.ts';
import { pageWidth, print } from './output.ts';

const DIRECTORY = join(packageRoot, 'docs');

/** The names of all pages. */
function pages(): string[] {
  if (!existsSync(DIRECTORY)) return [];
  const files = readdirSync(DIRECTORY).filter((name) => /^[a-z].*\.md$/.test(name));
  return files.map((name) => name.slice(0, -'.md'.length)).sort();
}

function docs({ positionals: [word, more] }: Parsed): void {
  if (more !== undefined) throw usage(`${showValue(more)} is one too many: docs prints one page`);
  const known = pages();
  if (known.length === 0) {
    throw new GPUOwnerError(
      'ERR_INTERNAL',
      `this package has no pages: ${DIRECTORY} is missing. Install it again.`,
    );
  }
  print(word === undefined ? list(known) : readable(textOf(pageNamed(word, known))));
}

/** @throws ERR_INVALID_ARGUMENT */
function pageNamed(word: string, known: readonly string[]): string {
  // As messages and links name them, too: docs/jobs.md#states
  const name = word.replace(/^.*\/|\.md(#.*)?$|#.*$/g, '').toLowerCase();
  if (known.includes(name)) return name;
  const meant = closest(name, known);
  throw usage(
    `there is no page ${showValue(word)}${meant === null ? '; `gpu-owner docs` lists them' : `; did you mean '${meant}'?`}`,
  );
}

function textOf(name: string): string {
  return readFileSync(join(DIRECTORY, `${name}.md`), 'utf8');
}

function list(names: readonly string[]): string {
  const width = Math.max(...names.map((name) => name.length)) + 2;
  const title = (name: string) => /^# (.*)$/m.exec(textOf(name))?.[1] ?? '';
  return names.map((name) => fitColumns(name.padEnd(width) + title(name), pageWidth())).join('\n');
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
  about: 'Prints a page of the documentation of this version. Without PAGE it lists the pages.',
  groups: [{ options: {} }],
  operands: { first: pages() },
  run: docs,
};
