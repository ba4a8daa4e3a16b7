import { GPUOwnerError } from '../../errors.ts';
import { findSweepFiles, openSweep, type Sweep } from '../../experiments/index.ts';
import type { Parsed } from '../arguments.ts';
import { sweepSource } from './sweep-options.ts';

/**
 * The sweep may be without a command: what is left of its tasks may have one.
 * @returns null: none is asked for, and the project has none: then what its queue has is to be done
 */
export async function sweepOf(parsed: Parsed, project: string): Promise<Sweep | null> {
  const source = sweepSource(parsed, project);
  const asked = source.files?.length || source.grid?.length || source.commands !== undefined;
  if (!asked && parsed.command.length === 0 && !hasSweepFiles(project)) return null;
  return openSweep({ ...source, withoutCommand: true });
}

function hasSweepFiles(project: string): boolean {
  try {
    return findSweepFiles(project).length > 0;
  } catch {
    return false;
  }
}

/** As it is said where files are looked for. */
export function noSweep(project: string): GPUOwnerError {
  try {
    findSweepFiles(project);
  } catch (error) {
    if (error instanceof GPUOwnerError) return error;
  }
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    'what shall be run? Name a sweep file, or use --grid or --commands',
  );
}
