// The values of options and operands that shells complete.
import { nativeFile } from '../native.ts';
import { schema } from '../platform/index.ts';
import type { Option } from './command-line.ts';

/** Proposals: words with descriptions, paths, or the shell's own for a command of the user's that begins at a position. */
export interface Offer {
  action: 'words' | 'file' | 'directory' | 'command';
  words: readonly (readonly [word: string, summary: string])[];
  at?: number;
}

export const offerWords = (words: Offer['words']): Offer => ({ action: 'words', words });
export const plain = (words: readonly string[]) => words.map((word) => [word, ''] as const);

/** @param prefix what stands before the value in its word */
export async function offerValues(option: Option | undefined, prefix: string): Promise<Offer> {
  const candidates = option?.candidates ?? [];
  if (candidates === 'file' || candidates === 'directory') return { action: candidates, words: [] };
  const words =
    candidates === 'job'
      ? await offeredJobs()
      : plain(candidates === 'machine' ? ['1', '2', '4', '8', ...machines()] : candidates);
  return offerWords(words.map(([word, summary]) => [prefix + word, summary]));
}

/** Numbers and names of the user's jobs. @param withEnded whether those that have ended count */
export async function offeredJobs(withEnded = true): Promise<Offer['words']> {
  const { isLiving, listJobs } = await import('../jobs/index.ts');
  const listed = listJobs({ user: null, all: false, lockDirectory: undefined });
  const words = listed.flatMap(({ id, name, command, state }) => {
    if (id === null || !(withEnded || isLiving(state))) return [];
    return [String(id), ...(name ? [name] : [])].map((word) => [word, brief(command)] as const);
  });
  return [...new Map(words)];
}

const NAMED = schema.jsonOf(schema.listOf(schema.record({ name: schema.text })));

/** Names of simulated machines, from the tool that has them. */
function machines(): string[] {
  const { spawnSync } = process.getBuiltinModule('node:child_process');
  const args = ['machines', '--json'];
  const { stdout, status } = spawnSync(nativeFile('gpu-owner-simulator'), args, { encoding: 'utf8' });
  return status === 0 ? NAMED(stdout, '').map(({ name }) => name) : [];
}

const MAX_SUMMARY = 70;

/** The first clause, if it is more than a word or two: what shells show beside a word. */
export function brief(help: string): string {
  const clause = /^.{12,}?(?=; |: | \(|, e\.g\.|$)/.exec(help)?.[0] ?? help;
  return clause.length <= MAX_SUMMARY ? clause : `${clause.slice(0, MAX_SUMMARY).replace(/ \S*$/, '')} …`;
}
