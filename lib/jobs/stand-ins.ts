import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { ifPossible } from '../errors.ts';
import { packageRoot } from '../native.ts';
import { prepend, warn } from '../platform/index.ts';

/** Where Python finds what makes claims of safe-gpu, gpu_lock and GPU Scheduler claims of the job: see decision 49. */
const DIRECTORY = `${packageRoot}/python/job`;
const ORIGINALS = /^[ \t]*(?:from|import)[ \t]+(safe_gpu|gpu_lock|gpu_scheduler)\b/m;
/** No longer scripts are looked at, in bytes. */
const MAX_SCRIPT_BYTES = 1024 * 1024;

/** PYTHONPATH of a job's command. An empty entry would mean the working directory, and strings can't carry all bytes. */
export function pythonPath(before = process.env.PYTHONPATH): { PYTHONPATH?: string } {
  if (before?.includes('\ufffd')) return {};
  return { PYTHONPATH: before ? prepend(DIRECTORY, before) : DIRECTORY };
}

/** Warns of a Python program that claims by one of these packages, started so that it doesn't read PYTHONPATH. */
export function warnWithoutStandIns(words: readonly string[]): void {
  if (!/^(?:python|pypy)[\d.]*$/.test(basename(words[0] ?? ''))) return;
  const script = words.findIndex(
    (word, i) =>
      i > 0 && (!word.startsWith('-') || word === '-c') && !/^-[A-Za-z]*[WX]$/.test(words[i - 1] ?? ''),
  );
  const option = words.slice(1, script).find((word) => /^-[A-Za-z]*[EIS]/.test(word) && !/^-[WX]/.test(word));
  if (script < 0 || option === undefined) return;
  const [file, code] = words.slice(script);
  const name = ORIGINALS.exec((file === '-c' ? code : textOf(file)) ?? '')?.[1];
  if (name === undefined) return;
  warn(
    `with ${option}, Python doesn't let this job replace ${name}: the program may take GPUs beside those of the job. Leave out ${option}, or import gpu_owner in its place (\`gpu-owner docs conventions\`).`,
  );
}

function textOf(file = ''): string {
  // Python says so itself
  return ifPossible(() => readFileSync(file, 'utf8').slice(0, MAX_SCRIPT_BYTES), '');
}
