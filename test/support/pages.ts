import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './machine.ts';

export const pages = [
  'README.md',
  'python/README.md',
  ...readdirSync(join(root, 'docs')).map((name) => `docs/${name}`),
].filter((name) => name.endsWith('.md'));
export const texts = new Map(pages.map((page) => [page, readFileSync(join(root, page), 'utf8')]));
export const everything = [...texts.values()].join('\n');

export interface Fence {
  page: string;
  line: number;
  language: string;
  /** How it is run; null: it isn't. */
  runs: { machine: string; project: string | null; meanwhile: string[] } | null;
  /** The file whose text it is. */
  file: { project: string; path: string } | null;
  body: string;
}

function fencesOf(page: string): Fence[] {
  const lines = (texts.get(page) as string).split('\n');
  const fences: Fence[] = [];
  for (let i = 0; i < lines.length; i++) {
    const language = /^```(\w*)$/.exec(lines[i] as string)?.[1];
    if (language === undefined) continue;
    const end = lines.indexOf('```', i + 1);
    const comment = lines[i - 1] ?? '';
    const [, machine, inside, meanwhile] =
      /^<!-- runs on (\S+)(?: in (\w+))?(?: while: (.+))? -->$/.exec(comment) ?? [];
    const [, project, path] = /^<!-- in (\w+): (\S+) -->$/.exec(comment) ?? [];
    fences.push({
      page,
      line: i + 1,
      language,
      runs:
        machine === undefined
          ? null
          : { machine, project: inside ?? null, meanwhile: meanwhile?.split('; ') ?? [] },
      file: project === undefined || path === undefined ? null : { project, path },
      body: lines.slice(i + 1, end).join('\n'),
    });
    i = end;
  }
  return fences;
}

export const fences = pages.flatMap(fencesOf);

/** A page's part from a heading to the next one of its level, or a higher one. */
export function section(page: string, heading: string): string {
  const text = texts.get(page) as string;
  if (!text.includes(`${heading}\n`)) throw new Error(`${page} has no ${heading}`);
  const part = text.slice(text.indexOf(`\n${heading}\n`) + 1);
  const [marks = ''] = heading.split(' ');
  return part.split(new RegExp(`\n#{1,${marks.length}} `))[0] as string;
}

/** The first fence of this language that a page in docs/ shows, after this text. */
export function fence(page: string, language: string, after = ''): string {
  const text = readFileSync(join(root, 'docs', page), 'utf8');
  const start = text.indexOf(after);
  const body = new RegExp(`^ *\`\`\`${language}\\n([\\s\\S]*?)\\n *\`\`\``, 'm').exec(text.slice(start))?.[1];
  if (start < 0 || body === undefined) throw new Error(`docs/${page} has no ${language} after ${after}`);
  return `${body}\n`;
}
