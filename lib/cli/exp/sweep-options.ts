import { oneOf, showValue, usageError } from '../../platform/index.ts';
import { loadRunning, type SearchMethod, type SearchOptions, type SweepSource } from '../../sweeps/index.ts';
import type { InferValues, OptionGroup, Parsed } from '../command-line.ts';

const METHODS: readonly SearchMethod[] = ['random', 'tpe', 'gp', 'cmaes'];

/** Options of commands that take a sweep. Words before `--` are its files; after --grid, those with `=` are axes. */
export const SWEEP_GROUP = {
  title: "What to run (default: the project's configs/config_exp*.yaml):",
  operands: [['FILE ...', 'sweep files in YAML']],
  options: {
    grid: {
      value: 'NAME=VALUES',
      isRepeatable: true,
      help: 'add an axis of an inline grid: width=1,2 seed=42..44',
    },
    hydra: {
      value: 'COMMAND',
      help: "run a program of Hydra with the overrides after it, as -m does: --hydra 'python train.py' lr=0.1,0.01",
    },
    commands: {
      value: 'FILE',
      help: 'run the commands of a file, one per line ("-": of standard input)',
      candidates: 'file',
    },
    phase: { value: 'NAME', help: 'name the phase of grid or commands', isAdvanced: true },
    'output-dir': { value: 'TEMPLATE', help: 'write its results there (default: results_{phase})' },
    retries: {
      value: 'N',
      help: 'start a task again N times after failures and lost workers (default 2; 0: only by hand)',
    },
    method: {
      value: 'METHOD',
      help: `search instead of trying all combinations: ${METHODS.join(', ')}`,
      candidates: METHODS,
    },
    trials: { value: 'N', help: 'number of combinations to try' },
    metric: { value: 'NAME', help: 'take this value of the results to tell good trials from bad ones' },
    maximize: { help: 'larger values are better (default: smaller ones)' },
    'stop-early': {
      value: 'RULE',
      help: 'stop bad trials: hyperband:FIRST_STEP[:ETA]',
      isAdvanced: true,
    },
    'search-seed': {
      value: 'N',
      help: 'choose other trials: the same number gives the same ones (default 0)',
      isAdvanced: true,
    },
    shell: { help: 'treat commands as lines for sh', isAdvanced: true },
    yes: { short: 'y', help: 'confirm more than 100,000 tasks', isAdvanced: true },
  },
  notes: `COMMAND may have {parameters} in its words, and {phase} and {output_dir}; {{ and }} are braces. It replaces the command of sweep files.`,
} as const satisfies OptionGroup;

/** A member that is there only if it has a value. */
function given<V>(key: string, value: V): Record<string, V> {
  return value === undefined ? {} : { [key]: value };
}

/**
 * The sweep that a command line asks for.
 * @param parsed of a command with {@link SWEEP_GROUP}
 * @throws ERR_INVALID_ARGUMENT
 */
export async function sweepSource(
  {
    values,
    positionals,
    command,
  }: Pick<Parsed, 'positionals' | 'command'> & {
    values: InferValues<typeof SWEEP_GROUP.options>;
  },
  project: string,
): Promise<SweepSource> {
  const { grid = [], commands, phase, shell, yes, hydra } = values;
  const outputDirectory = values['output-dir'];
  // A file with = in its name can be written ./a=b.yaml.
  const isAxis = (word: string) => hydra === undefined && /^[^/]*=/.test(word);
  const axes = positionals.filter(isAxis);
  if (axes.length > 0 && values.grid === undefined) {
    throw usageError(
      `${showValue(axes[0])} looks like a part of a grid; write --grid ${axes[0]}, or ./${axes[0]} for a file of this name`,
    );
  }
  refuseBareGrid(grid, positionals);
  return {
    project,
    files: hydra === undefined ? positionals.filter((word) => !isAxis(word)) : [],
    grid: [...grid, ...axes],
    shell: shell === true,
    yes: yes === true,
    ...given('commands', commands),
    ...given('hydra', hydra === undefined ? undefined : { command: hydra, overrides: positionals }),
    ...given('phase', phase),
    ...given('outputDirectory', outputDirectory),
    ...given('retries', wholeNumber(values.retries, '--retries', 0, MAX_RETRIES)),
    ...given('command', command.length > 0 ? command : undefined),
    ...given('search', await searchOptions(values)),
  };
}

/** The most that makes sense: a program that fails so often needs a person. */
const MAX_RETRIES = 100;
const MAX_NUMBER = 999_999_999;

/** @throws ERR_INVALID_ARGUMENT */
function wholeNumber(text: string | undefined, option: string, least: number, most = MAX_NUMBER) {
  if (text === undefined) return undefined;
  if (/^\d{1,9}$/.test(text) && Number(text) >= least && Number(text) <= most) return Number(text);
  const range = `from ${least} ${most === MAX_NUMBER ? 'on' : `to ${most}`}`;
  throw usageError(`${option}: ${showValue(text)} is not a whole number ${range}`);
}

/** undefined: the command line says nothing about a search. */
async function searchOptions(
  values: InferValues<typeof SWEEP_GROUP.options>,
): Promise<SearchOptions | undefined> {
  const { stopRule } = await loadRunning();
  const { method, trials, metric, maximize, 'search-seed': seed } = values;
  const rule = values['stop-early'];
  const options: SearchOptions = {
    ...given('method', method === undefined ? undefined : oneOf(method, METHODS, '--method')),
    ...given('trials', wholeNumber(trials, '--trials', 1)),
    ...given('metric', metric),
    ...given('stopEarly', rule === undefined ? undefined : stopRule(rule)),
    ...given('goal', maximize ? 'maximize' : undefined),
    ...given('seed', wholeNumber(seed, '--search-seed', 0)),
  };
  return Object.keys(options).length === 0 ? undefined : options;
}

/** Refuses `--grid lr 0.1 0.2`, whose values would be taken for sweep files. */
function refuseBareGrid(grid: readonly string[], positionals: readonly string[]): void {
  const bare = grid.find((word) => !word.includes('='));
  const value = grid.length === 0 ? undefined : positionals.find((word) => /^[\d.,e+-]+$/.test(word));
  if (bare === undefined && value === undefined) return;
  throw usageError(
    `--grid: ${showValue(bare ?? value)} has no '='; an axis is NAME=VALUE,VALUE, as in --grid lr=0.1,0.2 seed=1..3`,
  );
}
