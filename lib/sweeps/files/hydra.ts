// Command lines of Hydra, expanded by the user's own Hydra: https://hydra.cc/docs/advanced/override_grammar/basic/

import { spawnSync } from 'node:child_process';
import { GPUOwnerError } from '../../errors.ts';
import { packageRoot } from '../../native.ts';
import { listWords, sanitize, showValue, warn } from '../../platform/index.ts';
import { Literal, pythonOf, taskId, type Value, type Values } from '../task/index.ts';
import { mistake, splitShellWords } from './command.ts';
import { makeSpace, type SearchParameter, type Space } from './space.ts';

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
  /** Each as Hydra's sweeper writes it. null: there is no `=`. Absent: a range or an interval. */
  readonly texts?: readonly string[] | null;
  readonly range?: { readonly first: number; readonly step: number; readonly count: number };
  readonly interval?: { readonly min: number; readonly max: number; readonly log: boolean };
  /** Whether the numbers of a range or an interval are written with a point. */
  readonly isFloat?: boolean;
}

export interface HydraSweep {
  /** Each run has a directory of its own below the output directory. */
  space(phase: string, outputDirectory: string): Space;
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
  const [overrides, ignored] = [false, true].map((wanted) =>
    answer.overrides.filter(({ name }) => IGNORED.test(name) === wanted),
  ) as [Override[], Override[]];
  if (ignored.length > 0) {
    const names = listWords(ignored.map(({ name }) => name));
    warn(
      `${names} ${ignored.length > 1 ? 'have' : 'has'} no meaning here: gpu-owner starts the runs, in OUTPUT_DIR/runs`,
    );
  }
  const parameters: SearchParameter[] = [];
  const textsOf = new Map<string, ReadonlyMap<Value, string>>();
  for (const { key, name, isSweep, texts, interval, range, isFloat } of overrides) {
    if (/^hydra[./]/.test(name) && !isSweep) continue;
    const textOf = new Map(
      (texts ?? (range || interval ? [] : [''])).map((text) => [typedValue(text), text]),
    );
    const distribution: SearchParameter['distribution'] =
      range !== undefined
        ? { kind: 'range', ...range }
        : interval !== undefined
          ? { kind: 'uniform', ...interval, rounding: isFloat ? null : 'integer' }
          : { kind: 'choice', values: [...textOf.keys()] };
    parameters.push({ name: parameterOf(key), distribution });
    textsOf.set(key, textOf);
  }
  const fill = (values: Values): string[] =>
    overrides.map(({ key, isSweep, texts, isFloat }) => {
      if (texts === null) return key;
      if (!isSweep) return `${key}=${texts?.[0]}`;
      const chosen = values[parameterOf(key)] as Value;
      return `${key}=${textsOf.get(key)?.get(chosen) ?? textOfValue(chosen, isFloat === true)}`;
    });
  const mode = answer.isMultirun ? ['hydra.mode=RUN'] : [];
  return {
    space: (phase, outputDirectory) =>
      makeSpace({
        name: phase,
        location,
        parameters,
        directory: { value: outputDirectory, location: { option: '--output-dir' } },
        command: (values, place) => ({
          words: [...words, ...fill(values), ...mode, ...placeWords(place, taskId(values))],
        }),
      }),
  };
}

/** Overrides that the start of the runs decides. */
const IGNORED = /^hydra(?:\/launcher$|\.(?:run|sweep)\.)/;

/** A run has the place and the number that its task has, whatever else is in the sweep. */
function placeWords(outputDirectory: string, id: string): string[] {
  const name = id.slice(0, 14);
  return [
    `hydra.run.dir=${quoted(`${outputDirectory}/runs/${name}`)}`,
    `hydra.job.num=${Number.parseInt(name.slice(2, 9), 16)}`,
    `hydra.job.id=${quoted(name)}`,
  ];
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
  readonly overrides: readonly Override[];
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
    input: `${JSON.stringify({ program, overrides })}\n`,
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
