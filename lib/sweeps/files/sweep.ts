// A sweep: the tasks of sweep files, of an inline grid, or of a file of commands.

import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { formatCount, listWords, showValue, usageError } from '../../platform/index.ts';
import type { TaskSpec } from '../task/index.ts';
import { type CommandTemplate, commandTemplate, mistake } from './command.ts';
import { commandsSpace, phaseOfFile } from './commands-space.ts';
import { findSweepFiles, hasSweepFiles, readCommands, readSweepFile } from './files.ts';
import { type HydraLine, readHydra } from './hydra.ts';
import { checkPhaseName, defaultOutputOf } from './names.ts';
import { gridPhase, type Phase } from './phase.ts';
import {
  type Comparison,
  comparisonOf,
  drawTrials,
  isKnownAhead,
  type SearchOptions,
  type SeededSearch,
  searchOf,
  searchPhase,
} from './search.ts';
import { parseGrid, parseSweepFile } from './sources.ts';
import { makeSpace, type Space } from './space.ts';

/** More tasks than that must be meant. */
const MAX_TASKS_UNASKED = 100_000;

/** The sources of the tasks. Without files, grid and commands: the project's `configs/config_exp*.yaml`. */
export interface SweepSource {
  /** The project's directory. */
  project: string;
  /** Sweep files, relative to the current directory. */
  files?: readonly string[];
  /** `width=1,2`, `seed=42..44`: the axes of an inline grid. */
  grid?: readonly string[];
  /** A command line of Hydra, whose overrides are the axes. */
  hydra?: HydraLine;
  /** A file with a command per line; '-' is standard input. */
  commands?: string;
  /** The name of the phase of grid or commands: by default `grid`, or after the file. */
  phase?: string;
  /** The output directory of grid or commands: by default `results_{phase}`. */
  outputDirectory?: string;
  /** The command line after `--`; instead of what the files say. */
  command?: readonly string[];
  /** How often tasks are started again by themselves; instead of what the files say. */
  retries?: number;
  /** Commands are lines for `sh -c`. */
  shell?: boolean;
  /** A search instead of a grid, or changes of the search that the file describes. */
  search?: SearchOptions;
  /** More than {@link MAX_TASKS_UNASKED} tasks are meant. */
  yes?: boolean;
}

export interface Sweep {
  /** The parts of the sweep, in order. A name may occur more than once. */
  readonly phases: readonly Phase[];
  /** How many tasks there are, equal ones counted each time. */
  readonly size: number;
  /** The error where all tasks need a command: a phase has none. null: all have one. */
  readonly commandless: GPUOwnerError | null;
  /** The search, whose phase is the only one; null: there is none. */
  readonly search: SeededSearch | null;
  /** How the tasks of {@link search}, or of a grid, are compared; null: they aren't. */
  readonly comparison: Comparison | null;
  /** The tasks, made one by one; of a search, those that are known ahead. Can be called again. @throws ERR_CONFIGURATION for an impossible output directory in a very large phase */
  tasks(): Iterable<TaskSpec>;
  /** {@link tasks}, or one trial of a search: commands and directories of all others are like these. */
  samples(): Iterable<TaskSpec>;
}

/**
 * Reads a sweep, and tries its tasks (of a phase with more than 100,000, the first).
 * @throws ERR_INVALID_ARGUMENT for options, ERR_CONFIGURATION for what is in files
 */
export async function openSweep(source: SweepSource): Promise<Sweep> {
  checkInline(source);
  const { project, grid = [], commands, command, shell = false, retries, outputDirectory } = source;
  const hydra = source.hydra === undefined ? null : readHydra(source.hydra, project);
  const inline = grid.length > 0 || commands !== undefined || hydra !== null;
  const named = source.files ?? [];
  const files = named.length > 0 || inline ? withoutRepetition(named) : findSweepFiles(project);
  const template =
    command === undefined ? null : commandTemplate(command, shell, { option: 'the command line' });
  let parts = files.flatMap((path) => parseSweepFile(readSweepFile(path), path, template, shell));
  if (grid.length > 0) parts.push(gridSpace(source, template));
  const { phase = 'grid' } = source;
  if (hydra !== null) parts.push(hydra.space(phase, outputDirectory ?? defaultOutputOf(phase)));
  if (commands !== undefined) {
    parts.push(
      commandsSpace(await readCommands(commands), commands === '-' ? 'standard input' : commands, {
        phase: source.phase ?? phaseOfFile(commands),
        outputDirectory,
        template,
        shell,
      }),
    );
  }
  if (retries !== undefined) {
    parts = parts.map(({ taskOf, ...part }) => ({
      ...part,
      taskOf: (values) => ({ ...taskOf(values), retries }),
    }));
  }
  const search = searchOf(parts, source.search);
  const phases = search === null ? parts.map(gridPhase) : [searchPhase(search)];
  const size = phases.reduce((sum, each) => sum + each.size, 0);
  if (size > MAX_TASKS_UNASKED && !source.yes) throw tooMany(phases, size);
  function* tasks(): Generator<TaskSpec> {
    for (const each of phases) yield* each.tasks();
  }
  return {
    phases,
    size,
    commandless: withoutCommand(parts),
    search,
    comparison: search ?? comparisonOf(parts, phases, source.search),
    tasks,
    samples: () => (search === null || isKnownAhead(search) ? tasks() : drawTrials(search)),
  };
}

/**
 * Reads a sweep as {@link openSweep}.
 * @returns null: none is asked for, and the project has no sweep files
 */
export async function openSweepIfAny(source: SweepSource): Promise<Sweep | null> {
  const asked =
    source.files?.length ||
    source.grid?.length ||
    source.commands !== undefined ||
    source.hydra !== undefined;
  if (!asked && source.command === undefined && !hasSweepFiles(source.project)) return null;
  return openSweep(source);
}

/** Makes the error for a project with nothing to run: what {@link findSweepFiles} says. */
export function noSweep(project: string): GPUOwnerError {
  try {
    findSweepFiles(project);
  } catch (error) {
    if (error instanceof GPUOwnerError) return error;
  }
  return usageError('there is nothing to run: name a sweep file, or use --grid or --commands');
}

function checkInline(source: SweepSource): void {
  const { phase, outputDirectory, hydra } = source;
  const inline = source.grid?.length || source.commands !== undefined || hydra !== undefined;
  const other = [
    source.files?.length ? showValue(source.files[0]) : null,
    source.grid?.length ? '--grid' : null,
    source.commands === undefined ? null : '--commands',
    source.command === undefined ? null : 'the command after --',
  ].find((each) => each !== null);
  if (hydra !== undefined && other) {
    throw mistake(
      { option: '--hydra' },
      `it has the whole sweep, and ${other} is given, too; write --hydra 'python train.py' lr=0.1,0.01`,
    );
  }
  if (source.commands !== undefined && source.search?.method !== undefined) {
    throw mistake({ option: '--method' }, 'a list of commands is no search; use --grid or a sweep file');
  }
  if (!inline && (phase !== undefined || outputDirectory !== undefined)) {
    throw mistake(
      { option: phase === undefined ? '--output-dir' : '--phase' },
      'it only works with --grid and --commands; in sweep files, the key of a phase is its name, and output_dir its directory',
    );
  }
  if (phase !== undefined) {
    checkPhaseName(phase, (why) => mistake({ option: '--phase' }, why));
    if (source.commands !== undefined && source.grid?.length) {
      throw mistake(
        { option: '--phase' },
        '--grid and --commands each make a phase; start them one after the other',
      );
    }
  }
}

function gridSpace(
  { grid = [], phase = 'grid', outputDirectory }: SweepSource,
  command: CommandTemplate | null,
): Space {
  const parameters = parseGrid(grid);
  const location = { option: '--output-dir' };
  if (outputDirectory !== undefined && parameters.some(({ name }) => name === 'output_dir')) {
    throw mistake(location, 'output_dir is an axis of the grid, too; remove one');
  }
  return makeSpace({
    name: phase,
    location: { option: '--grid' },
    parameters,
    ...(outputDirectory !== undefined && { directory: { value: outputDirectory, location } }),
    command,
  });
}

function withoutCommand(parts: readonly Space[]): GPUOwnerError | null {
  const found = parts.find(({ hasCommand }) => !hasCommand);
  if (found === undefined) return null;
  const { name, location } = found;
  return mistake(
    location,
    `phase ${showValue(name)} has no command to run; put it at the end, such as -- python train.py --seed {seed}${'file' in location ? ", or write 'command:' into the file" : ''}`,
  );
}

/** A file that is named twice is read once. */
function withoutRepetition(paths: readonly string[]): string[] {
  return Array.from(new Map(paths.toReversed().map((path) => [resolve(path), path])).values()).toReversed();
}

function tooMany(phases: readonly Phase[], size: number): GPUOwnerError {
  const shown = phases
    .toSorted((a, b) => b.size - a.size)
    .slice(0, 5)
    .map(({ name, factors, size: each }) => {
      const product = factors
        .map(
          ({ name, count }) =>
            `${showValue(name).slice(1, -1)}${count === null ? '' : ` ${formatCount(count)}`}`,
        )
        .join(' x ');
      return `${name}: ${product || '1'}${factors.length > 1 ? ` = ${formatCount(each)}` : ''}`;
    });
  if (phases.length > shown.length) shown.push(`${phases.length - shown.length} more phases`);
  return usageError(`that would be ${formatCount(size)} tasks (${listWords(shown)}); to confirm, add --yes`);
}
