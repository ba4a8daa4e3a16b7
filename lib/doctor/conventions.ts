import { statSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { listWords } from '../text.ts';
import type { Report } from './finding.ts';

/** Another tool's way to lock GPUs, as far as this machine shows it. */
interface Convention {
  name: string;
  active: boolean;
  why: string;
  paths: string[];
}

/** Other tools that lock GPUs here. */
export async function examineConventions(report: Report): Promise<void> {
  report.step('looking for lock files of other tools');
  const active = (await conventionsInUse('auto')).filter((convention) => convention.active);
  for (const { name, why, paths } of active) {
    report.add('convention-in-use', `${name}: ${why}${paths.length === 0 ? '' : ` (${listWords(paths)})`}.`);
  }
  if (active.length === 0) report.add('conventions', 'No lock files of other tools.');
}

const PLACES: Record<string, () => string[]> = {
  'safe-gpu': () => ['/tmp/safe_gpu'],
  gpu_lock: () => ['/var/tmp/gpu_lock', '/var/tmp/gpu_locks'],
  'gpu-scheduler': () => [join(process.env.HOME || homedir(), '.gpu_locks'), '/tmp/gpu_locks'],
  'pid-files': () => [join(process.cwd(), '.gpu_locks')],
};

/** By the directories in which these tools have their locks. */
async function conventionsInUse(choice: 'auto' | readonly string[]): Promise<Convention[]> {
  const wanted = Object.entries(PLACES).filter(([name]) => choice === 'auto' || choice.includes(name));
  return wanted.map(([name, places]) => {
    const paths = places().filter((path) => isDirectory(path));
    return { name, active: paths.length > 0, why: 'its directory is there', paths };
  });
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}
