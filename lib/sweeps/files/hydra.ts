// Command lines of Hydra, expanded by the user's own Hydra: https://hydra.cc/docs/advanced/override_grammar/basic/

import { spawnSync } from 'node:child_process';
import { GPUOwnerError } from '../../errors.ts';
import { packageRoot } from '../../native.ts';
import { sanitize, showValue, timestamp, warn } from '../../platform/index.ts';
import { Literal, pythonOf, type TaskCommand, taskId, type Value, type Values } from '../task/index.ts';
import { mistake, splitShellWords } from './command.ts';
import type { Phase } from './phase.ts';
import type { SearchOptions } from './search.ts';
import { GRID, gridPhaseOf, type SearchParameter, type SpaceSweep } from './search-space.ts';

type Refuse = (why: string) => Error;

/** `python train.py`, and words such as `lr=0.1,0.01`. */
export interface HydraLine {
  readonly command: string;
  readonly overrides: readonly string[];
}

/** An override as python/hydra_helper.py describes it. */
interface Override {
  /** With `+`, `~` and the package. */
  readonly key: string;
  /** Without them. */
  readonly name: string;
  readonly isSweep: boolean;
  /** Each as Hydra's sweeper writes it. null: there is no `=`. Absent: an interval. */
  readonly texts?: readonly string[] | null;
  /** The values of a range() as a search has them. A grid has the texts, in the order that the line says. */
  readonly range?: { readonly first: number; readonly step: number; readonly count: number };
  readonly interval?: { readonly min: number; readonly max: number; readonly log: boolean };
  /** Whether the numbers of a range or an interval are written with a point. */
  readonly isFloat?: boolean;
}

/** Where Hydra puts the runs of a sweep, and their numbers. */
export interface HydraPlaces {
  readonly directory: string;
  /** By the ids of tasks. */
  readonly numbers: ReadonlyMap<string, number>;
}

export interface HydraSweep {
  /** The names of what varies or is fixed. */
  readonly parameters: readonly string[];
  /** What the configuration of Optuna's sweeper says. null: the sweeper is Hydra's own. */
  readonly search: SearchOptions | null;
  /** For a search. Each trial has a directory of its own: Hydra would name two of the same second alike. */
  space(phase: string, outputDirectory: string): SpaceSweep;
  /** The jobs of a multirun. @param known where earlier starts of the sweep have put its tasks; null: nowhere */
  phase(phase: string, outputDirectory: string, known: HydraPlaces | null): Phase;
}

/**
 * Reads a command line as `python train.py -m` would.
 * @param project the directory in which the program runs @throws ERR_INVALID_ARGUMENT
 */
export function readHydra({ command, overrides: more }: HydraLine, project: string): HydraSweep {
  const location = { option: '--hydra' };
  const refuse: Refuse = (why) => mistake(location, why);
  const { words, inLine } = programWords(splitShellWords(command, refuse));
  const odd = more.find((word) => !isOverride(word));
  if (odd !== undefined) {
    throw refuse(
      `${showValue(odd)} is no override such as lr=0.1,0.01; the program stands in quotes after --hydra: --hydra 'python train.py'`,
    );
  }
  const answer = askHydra(words, [...inLine, ...more], project, refuse);
  if (answer.overrides.some(({ name }) => name === 'hydra/launcher'))
    warn('hydra/launcher has no meaning here: gpu-owner starts the runs');
  const overrides = answer.overrides.filter(
    ({ name, key }) => name !== 'hydra/launcher' && (answer.directory === null || key !== 'hydra.sweep.dir'),
  );
  const parameters: SearchParameter[] = [];
  const textsOf = new Map<string, ReadonlyMap<Value, string>>();
  const ranges = new Map<string, SearchParameter['distribution']>();
  for (const { key, name, isSweep, texts, interval, range, isFloat } of overrides) {
    if (isHydras(name) && !isSweep) continue;
    const textOf = new Map((texts ?? ['']).map((text) => [typedValue(text), text]));
    const distribution: SearchParameter['distribution'] =
      interval === undefined
        ? { kind: 'choice', values: [...textOf.keys()], weights: null }
        : {
            kind: 'uniform',
            ...interval,
            rounding: isFloat ? null : 'integer',
          };
    parameters.push({ path: [key], name: parameterOf(key), distribution });
    if (range !== undefined) ranges.set(parameterOf(key), { kind: 'range', ...range });
    textsOf.set(key, interval === undefined ? textOf : new Map());
  }
  const fill = (values: Values): string[] =>
    overrides.map(({ key, isSweep, texts, isFloat }) => {
      if (texts === null) return key;
      if (!isSweep) return `${key}=${texts?.[0]}`;
      const chosen = values[parameterOf(key)] as Value;
      return `${key}=${textsOf.get(key)?.get(chosen) ?? textOfValue(chosen, isFloat === true)}`;
    });
  const isNamed = overrides.some(({ key }) => key === 'hydra.sweep.dir');
  const directory = answer.directory ?? (isNamed ? null : defaultDirectory());
  const commandOf = (values: Values, place: readonly string[]): TaskCommand => ({
    words: [...words, ...fill(values), ...(answer.isMultirun ? ['hydra.mode=RUN'] : []), ...place],
  });
  const spaceOf = (name: string, outputDirectory: string, command: SpaceSweep['command']) => ({
    ...GRID,
    name,
    location,
    parameters,
    outputDirectory,
    command,
  });
  return {
    parameters: parameters.map(({ name }) => name),
    search: answer.search,
    space: (phase, outputDirectory) => ({
      ...spaceOf(phase, outputDirectory, (values) =>
        commandOf(values, [
          `hydra.run.dir=${quoted(`${outputDirectory}/runs/${taskId(values).slice(0, 14)}`)}`,
        ]),
      ),
      parameters: parameters.map((each) => ({
        ...each,
        distribution: ranges.get(each.name) ?? each.distribution,
      })),
    }),
    phase(phase, outputDirectory, known) {
      const grid = gridPhaseOf(spaceOf(phase, outputDirectory, (values) => commandOf(values, [])));
      let first = 0;
      for (const number of known?.numbers.values() ?? []) first = Math.max(first, number + 1);
      return {
        ...grid,
        *tasks() {
          let next = first;
          for (const task of grid.tasks()) {
            const number = known?.numbers.get(taskId(task.parameters)) ?? next++;
            const place = placeWords(known?.directory ?? directory, number);
            yield { ...task, command: commandOf(task.parameters, place) };
          }
        },
      };
    },
  };
}

const DIRECTORY = 'hydra.sweep.dir=';
const NUMBER = 'hydra.job.num=';

/** A run of its own that looks as one of Hydra's sweep. @param directory null: the line names it */
function placeWords(directory: string | null, number: number): string[] {
  return [
    ...(directory === null ? [] : [`${DIRECTORY}${quoted(directory)}`]),
    'hydra.run.dir=${hydra.sweep.dir}/${hydra.sweep.subdir}',
    `${NUMBER}${number}`,
    `hydra.job.id=${number}`,
  ];
}

/** Where the command of a task puts its run. null: it has no such place. */
export function placeOf(command: TaskCommand): { directory: string; number: number } | null {
  if (!('words' in command)) return null;
  const behind = (start: string) =>
    command.words.findLast((word) => word.startsWith(start))?.slice(start.length);
  const directory = behind(DIRECTORY);
  const number = Number(behind(NUMBER) ?? Number.NaN);
  return directory === undefined || !Number.isSafeInteger(number)
    ? null
    : { directory: directory.replace(/^'(.*)'$/s, '$1').replaceAll("\\'", "'"), number };
}

function isOverride(word: string): boolean {
  return /^(?:~|[\w$+@][^=]*=)/.test(word);
}

/** The words of a line that start the program, and its overrides. `-m` of Hydra is left out, the one of Python stays. */
function programWords(all: readonly string[]): { words: string[]; inLine: string[] } {
  const isPython = /(?:^|\/)(?:python|pypy)[\d.]*$/.test(all[0] ?? '');
  const start = isPython && all[1] === '-m' ? 3 : 1;
  const after = all.slice(start).filter((word) => word !== '-m' && word !== '--multirun');
  return {
    words: [...all.slice(0, start), ...after.filter((word) => !isOverride(word))],
    inLine: after.filter(isOverride),
  };
}

/** The parameter of the tasks for an override with this key. */
function parameterOf(key: string): string {
  return key.replace(/^\++/, '');
}

function isHydras(name: string): boolean {
  return /^hydra[./]/.test(name);
}

const NUMBER_TEXT = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]?\d+)?$/;

/** A value for the table and the task's file: numbers as numbers, texts without quotes. */
function typedValue(text: string): Value {
  if (NUMBER_TEXT.test(text)) {
    const number = Number(text);
    return String(number) === text ? number : new Literal(number, text);
  }
  if (text === 'True' || text === 'False') return text === 'True';
  if (text === 'null') return null;
  const quote = /^(['"])(.*)\1$/s.exec(text);
  return quote ? (quote[2] as string).replaceAll(`\\${quote[1]}`, quote[1] as string) : text;
}

/** A number that was chosen, for Hydra. */
function textOfValue(value: Value, isFloat: boolean): string {
  const text = value instanceof Literal ? value.text : String(value);
  return isFloat && /^-?\d+$/.test(text) ? `${text}.0` : text;
}

interface Answer {
  /** Where a multirun that begins now puts its runs. null: the program wasn't asked, or doesn't say it. */
  readonly directory: string | null;
  readonly overrides: readonly Override[];
  readonly search: SearchOptions | null;
  /** Whether the program's configuration makes each start a multirun. */
  readonly isMultirun: boolean;
}

/** Lets the user's Hydra expand the overrides; the helper also asks the program, for at most two minutes. */
function askHydra(
  program: readonly string[],
  overrides: readonly string[],
  project: string,
  refuse: Refuse,
): Answer {
  const python = pythonOf({ words: [program[0] ?? ''] });
  const { stdout, stderr, error } = spawnSync(python, [`${packageRoot}/python/hydra_helper.py`], {
    cwd: project,
    encoding: 'utf8',
    input: JSON.stringify({ program, overrides }),
    maxBuffer: Number.POSITIVE_INFINITY,
  });
  let answer: Answer | { error: string } | { missing: string };
  try {
    answer = JSON.parse(stdout ?? '');
  } catch {
    const why = sanitize(error?.message ?? stderr?.trim().split('\n').at(-1) ?? '', 300);
    throw new GPUOwnerError('ERR_SYSTEM', `${python} can't read the overrides of Hydra: ${why}`);
  }
  if ('missing' in answer) {
    throw refuse(
      `the overrides are read by Hydra, and ${python} doesn't find ${showValue(answer.missing)}: ${python} -m pip install hydra-core`,
    );
  }
  if ('error' in answer) throw refuse(sanitize(answer.error, 500));
  if (stderr !== '') warn(`${sanitize(stderr.trim(), 400)}`);
  return answer;
}

function quoted(directory: string): string {
  return /^[\w./@+-]+$/.test(directory) ? directory : `'${directory.replaceAll("'", "\\'")}'`;
}

/** `multirun/2026-11-26/09-30-00`, Hydra's default. */
function defaultDirectory(): string {
  return `multirun/${timestamp().replace(' ', '/').replaceAll(':', '-')}`;
}
