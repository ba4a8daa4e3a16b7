// The processes of a simulated machine as the kernel has them: whoever has inherited the machine's directory in the environment.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import type { Machine } from '../support/machine.ts';

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
  const found: Process[] = [];
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
    try {
      if (!readFileSync(`/proc/${name}/environ`, 'latin1').includes(machine.directory)) continue;
      const stat = readFileSync(`/proc/${name}/stat`, 'latin1');
      const comm = stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'));
      const [state = '', parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      if (state === 'Z' || state === 'X') continue;
      const words = readFileSync(`/proc/${name}/cmdline`, 'latin1').split('\0').slice(0, -1);
      found.push({ pid: Number(name), parent: Number(parent), kind: kindOf(comm, words), state, words });
    } catch {
      // It has ended meanwhile.
    }
  }
  return found;
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
    // It has ended meanwhile.
  }
  return `${pid} (${kind}, ${state}, child of ${parent}, ${program}): ${words.join(' ').slice(0, 300)}`;
}
