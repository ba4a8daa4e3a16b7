import { resolve } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { listWords, showValue } from '../../platform/index.ts';
import type { TaskSpec } from '../task/index.ts';
import { type CommandTemplate, commandTemplate } from './command.ts';
import { commandsPhase, phaseOfFile } from './commands.ts';
import { findSweepFiles, readCommands, readSweepFile } from './files.ts';
import { parseGrid } from './grid.ts';
import { checkPhaseName } from './names.ts';
import { mistake } from './origin.ts';
import { compilePhase, type Phase, type PhaseSource } from './phase.ts';
import { parseSweepFile } from './sweep-file.ts';

/** More tasks than that must be meant. */
export const MOST_TASKS_UNASKED = 100_000;

/** Where the tasks come from. Without files, grid and commands: the project's `configs/config_exp*.yaml`. */
export interface SweepSource {
  /** Its directory. */
  project: string;
  /** Sweep files, relative to the current directory. */
  files?: readonly string[];
  /** `width=1,2`, `seed=42..44`: the axes of an inline grid. */
  grid?: readonly string[];
  /** A file with a command per line; '-' is standard input. */
  commands?: string;
  /** What the phase of grid or commands is called: by default `grid`, or after the file. */
  phase?: string;
  /** The output directory of grid or commands: by default `results_{phase}`. */
  outputDirectory?: string;
  /** The command line behind `--`; instead of what the files say. */
  command?: readonly string[];
  /** Commands are lines for `sh -c`. */
  shell?: boolean;
  /** More than {@link MOST_TASKS_UNASKED} tasks are meant. */
  yes?: boolean;
  /** Whether a sweep without a command will do: its tasks have no words then. */
  withoutCommand?: boolean;
}

export interface Sweep {
  /** The sweep files, in the order in which they come. */
  readonly files: readonly string[];
  /** What the sweep consists of, in order. A name may occur more than once. */
  readonly phases: readonly Phase[];
  /** How many tasks there are, equal ones counted each time. */
  readonly size: number;
  /** What is wrong where all tasks need a command: a phase has none. null: all have one. */
  readonly commandless: GPUOwnerError | null;
  /** The tasks, made one by one. Can be called again. @throws ERR_CONFIGURATION for an impossible output directory in a very large phase */
  tasks(): Iterable<TaskSpec>;
}

/**
 * Reads a sweep, and tries its tasks (of a phase with more than 100,000, the first).
 * @throws ERR_INVALID_ARGUMENT for options, ERR_CONFIGURATION for what is in files
 */
export async function openSweep(source: SweepSource): Promise<Sweep> {
  const { project, grid = [], commands, command, shell = false } = source;
  const inline = grid.length > 0 || commands !== undefined;
  checkInline(source, inline);
  const named = source.files ?? [];
  const files = named.length > 0 || inline ? withoutRepetition(named) : findSweepFiles(project);
  const template =
    command === undefined ? null : commandTemplate(command, shell, { option: 'the command line' });
  const sources: PhaseSource[] = files.flatMap((path) =>
    parseSweepFile(readSweepFile(path), path, template, shell),
  );
  if (grid.length > 0) sources.push(gridPhase(source, template));
  const commandless = withoutCommand(sources);
  if (commandless !== null && !source.withoutCommand) throw commandless;
  const phases = sources.map(compilePhase);
  if (commands !== undefined) {
    const text = await readCommands(commands);
    phases.push(
      commandsPhase(text, commands === '-' ? 'standard input' : commands, {
        phase: source.phase ?? phaseOfFile(commands),
        outputDirectory: source.outputDirectory ?? 'results_{phase}',
        template,
        shell,
      }),
    );
  }
  const size = phases.reduce((sum, phase) => sum + phase.size, 0);
  if (size > MOST_TASKS_UNASKED && !source.yes) throw tooMany(phases, size);
  return {
    files,
    phases,
    size,
    commandless,
    *tasks() {
      for (const phase of phases) yield* phase.tasks();
    },
  };
}

function checkInline(source: SweepSource, inline: boolean): void {
  const { phase, outputDirectory } = source;
  if (!inline && (phase !== undefined || outputDirectory !== undefined)) {
    throw mistake(
      { option: phase === undefined ? '--output-dir' : '--phase' },
      'it is for --grid and --commands; in sweep files the key of a phase is its name, and output_dir its directory',
    );
  }
  if (phase !== undefined) {
    checkPhaseName(phase, (why) => mistake({ option: '--phase' }, why));
    if (source.commands !== undefined && source.grid?.length) {
      throw mistake(
        { option: '--phase' },
        '--grid and --commands are a phase each; start them one after the other',
      );
    }
  }
}

function gridPhase(
  { grid = [], phase = 'grid', outputDirectory }: SweepSource,
  command: CommandTemplate | null,
): PhaseSource {
  const axes = parseGrid(grid);
  const origin = { option: '--output-dir' };
  if (outputDirectory !== undefined && axes.some(({ key }) => key === 'output_dir')) {
    throw mistake(origin, 'output_dir is an axis of the grid as well; leave one out');
  }
  const fixed =
    outputDirectory === undefined ? [] : [['output_dir', { value: outputDirectory, origin }] as const];
  return { name: phase, origin: { option: '--grid' }, fixed: new Map(fixed), axes, command };
}

function withoutCommand(phases: readonly PhaseSource[]): GPUOwnerError | null {
  const found = phases.find(({ command }) => command === null);
  if (found === undefined) return null;
  const { name, origin } = found;
  return mistake(
    origin,
    `phase ${showValue(name)} has no command to run; put it at the end, such as -- python train.py --seed {seed}${'file' in origin ? ", or write 'command:' into the file" : ''}`,
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
        .map((factor) => `${showValue(factor.name).slice(1, -1)} ${formatCount(factor.count)}`)
        .join(' x ');
      return `${name}: ${product || '1'}${factors.length > 1 ? ` = ${formatCount(each)}` : ''}`;
    });
  if (phases.length > shown.length) shown.push(`${phases.length - shown.length} more phases`);
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    `that would be ${formatCount(size)} tasks (${listWords(shown)}); if so many are meant, say --yes`,
  );
}

/** `10,000,000`; what is too large to be counted exactly: `1.2e+30`. */
function formatCount(count: number): string {
  return count <= Number.MAX_SAFE_INTEGER ? count.toLocaleString('en') : count.toPrecision(2);
}
