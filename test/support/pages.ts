import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './machine.ts';

/** The first fence of this language that a page in docs/ shows, after this text. */
export function fence(page: string, language: string, after = ''): string {
  const text = readFileSync(join(root, 'docs', page), 'utf8');
  const start = text.indexOf(after);
  const body = new RegExp(`^ *\`\`\`${language}\\n([\\s\\S]*?)\\n *\`\`\``, 'm').exec(text.slice(start))?.[1];
  if (start < 0 || body === undefined) throw new Error(`docs/${page} has no ${language} after ${after}`);
  return `${body}\n`;
}
