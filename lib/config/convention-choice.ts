import type { GPUOwnerError } from '../errors.ts';
import { invalidValue, listWords } from '../platform/index.ts';

/** Other tools' ways to lock GPUs that are known here, in the order in which they are asked. */
export const CONVENTIONS = ['safe-gpu', 'gpu_lock', 'gpu-scheduler', 'pid-files'] as const;

export type ConventionName = (typeof CONVENTIONS)[number];

/** auto: those whose directory exists. Claims make the directories that belong to the whole machine. */
export type ConventionChoice = 'auto' | readonly ConventionName[];

/**
 * 'auto', 'none', names divided by commas, or a list of names.
 * @throws ERR_INVALID_ARGUMENT, naming the ones that are known
 */
export function parseConventions(value: unknown, option: string): ConventionChoice {
  if (value === 'auto') return 'auto';
  if (value === 'none') return [];
  const names: unknown[] = Array.isArray(value)
    ? value
    : typeof value === 'string'
      ? value.split(',').map((name) => name.trim())
      : [value];
  for (const name of names) if (!isKnown(name)) throw unknown(option, name);
  return CONVENTIONS.filter((name) => names.includes(name));
}

/** The value of GPU_OWNER_CONVENTIONS; undefined: none. @throws ERR_INVALID_ARGUMENT */
export function conventionsOfEnvironment(env: NodeJS.ProcessEnv = process.env): ConventionChoice | undefined {
  const value = env.GPU_OWNER_CONVENTIONS;
  return value ? parseConventions(value, 'GPU_OWNER_CONVENTIONS') : undefined;
}

function isKnown(name: unknown): name is ConventionName {
  return (CONVENTIONS as readonly unknown[]).includes(name);
}

function unknown(option: string, name: unknown): GPUOwnerError {
  return invalidValue(option, name, 'valid', `use 'auto', 'none', or some of ${listWords(CONVENTIONS)}`);
}
