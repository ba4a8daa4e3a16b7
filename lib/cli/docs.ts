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
  print(word === undefined ? list(known) : textFor(word, known));
}

/** The page, or the part of it, that a word names. @throws ERR_INVALID_ARGUMENT */
function textFor(word: string, known: readonly string[]): string {
  const text = readable(textOf(pageNamed(word, known)));
  const [, heading] = word.split('#');
  return (heading === undefined ? null : partOf(text, heading)) ?? text;
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

/** The part of a page below a heading, which is named as in links. null: there is none */
function partOf(text: string, heading: string): string | null {
  const isCode = (at: number) => text.slice(0, at).split(/^```/m).length % 2 === 0;
  const headings = [...text.matchAll(/^(#+) (.*)$/gm)].filter(({ index }) => !isCode(index));
  const anchor = (title = '') =>
    title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '')
      .replace(/\s/g, '-');
  const at = headings.findIndex(([, , title]) => anchor(title) === heading);
  const found = headings[at];
  if (found === undefined) return null;
  const [, depth = ''] = found;
  const next = headings.slice(at + 1).find(([, each = '']) => each.length <= depth.length);
  return text.slice(found.index, next?.index).trimEnd();
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
  about:
    'Prints a page of the documentation of this version, or a part of it (jobs#states). Without PAGE it lists the pages.',
  groups: [{ options: {} }],
  operands: { first: pages() },
  run: docs,
};
