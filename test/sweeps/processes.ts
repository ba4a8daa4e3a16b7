// The processes of a simulated machine as the kernel has them: all that have inherited the machine's directory in the
// environment.
import { readlinkSync } from 'node:fs';
import type { Machine } from '../support/machine.ts';
import { isAlive, processesWith, stat, wordsOf } from '../support/processes.ts';

export type Kind = 'manager' | 'worker' | 'keeper' | 'watchdog' | 'command' | 'child' | 'other';

export interface Process {
  pid: number;
  parent: number;
  kind: Kind;
  /** 'T' = stopped, … */
  state: string;
  words: string[];
}

/** All living ones, zombies left out. */
export function processesOf(machine: Machine): Process[] {
  return processesWith(machine.directory).flatMap((pid) => {
    const found = stat(pid);
    const words = wordsOf(pid);
    if (found === null || !isAlive(pid)) return []; // the process has ended meanwhile
    const { name, parent, state } = found;
    return [{ pid, parent, kind: kindOf(name, words), state, words }];
  });
}

function kindOf(comm: string, words: readonly string[]): Kind {
  if (comm === 'gpu-owner-keep') return 'keeper';
  if (comm === 'gpu-owner-guard') return 'watchdog';
  const exp = words.indexOf('exp');
  if (exp >= 0 && words[exp + 1] === 'run') return 'manager';
  if (exp >= 0 && words[exp + 1] === 'worker') return 'worker';
  const script = words.findIndex((word) => word.endsWith('_task.py'));
  if (script >= 0) return words[script + 1] === undefined ? 'command' : 'child';
  return 'other';
}

/** For messages about what shouldn't be there. */
export function describeProcess({ pid, parent, kind, state, words }: Process): string {
  let program = '';
  try {
    program = readlinkSync(`/proc/${pid}/exe`);
  } catch {
    // The process has ended meanwhile.
  }
  return `${pid} (${kind}, ${state}, child of ${parent}, ${program}): ${words.join(' ').slice(0, 300)}`;
}
