import { show, type Value, Written } from '../task/index.ts';

/** In bytes, so that a name with a suffix is still good for a file. */
const LONGEST_PHASE = 120;
const LONGEST_SEED = 60;

/** What has no place in a file's name, or plays tricks on terminals. */
const UNSAFE = /[/\\\p{Cc}\p{Cf}\p{Cs}\p{Z}]+/gu;

/** A phase as it stands in names. Phases that look alike there are counted together. */
export function phaseInName(phase: string): string {
  const safe = shorten(phase.replace(UNSAFE, '_'), LONGEST_PHASE) || '_';
  // Neither hidden nor an option.
  return /^[.-]/.test(safe) ? `_${safe}` : safe;
}

/** `exp1_vary_width_0_42`. @param phase as `phaseInName` has it @param seed null: none */
export function taskName(phase: string, counter: number, seed: Value): string {
  if (seed === null || (seed instanceof Written && seed.data === null)) return `${phase}_${counter}`;
  return `${phase}_${counter}_${shorten(show(seed).replace(UNSAFE, '_'), LONGEST_SEED)}`;
}

function shorten(text: string, bytes: number): string {
  if (Buffer.byteLength(text) <= bytes) return text;
  let result = '';
  let size = 0;
  for (const character of text) {
    size += Buffer.byteLength(character);
    if (size > bytes) break;
    result += character;
  }
  return result;
}
