// Command lines of Hydra: https://hydra.cc/docs/advanced/override_grammar/basic/

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { listWords, sanitize, shellWords, showValue, timestamp, warn } from '../../platform/index.ts';
import { Literal, type TaskCommand, taskId, type Value, type Values } from '../task/index.ts';
import { mistake, splitShellWords } from './command.ts';
import type { Phase } from './phase.ts';
import { GRID, gridPhaseOf, type SearchParameter, type SpaceSweep } from './search-space.ts';

type Refuse = (why: string) => Error;

/** `python train.py`, and words such as `lr=0.1,0.01`. */
export interface HydraLine {
  readonly command: string;
  readonly overrides: readonly string[];
}

/** A word that overrides something: what it does, the key, the value. */
interface Override {
  readonly key: string;
  /** The name without `+`. */
  readonly name: string;
  /** null: it has no `=`. */
  readonly value: Parsed | null;
}

/** A value as texts for Hydra. */
type Parsed =
  | { readonly kind: 'values'; readonly texts: readonly string[]; readonly isSweep: boolean }
  | { readonly kind: 'interval'; readonly min: number; readonly max: number; readonly isInteger: boolean }
  | { readonly kind: 'glob'; readonly include: readonly string[]; readonly exclude: readonly string[] };

/** Where Hydra puts the runs of a sweep, and their numbers. */
export interface HydraPlaces {
  readonly directory: string;
  /** By the ids of tasks. */
  readonly numbers: ReadonlyMap<string, number>;
}

export interface HydraSweep {
  /** The names of what varies or is fixed. */
  readonly parameters: readonly string[];
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
  const overrides = [...inLine, ...more].map((word) => parseOverride(word, refuse));
  if (overrides.some(({ name }) => name === 'hydra/launcher'))
    warn('hydra/launcher has no meaning here: gpu-owner starts the runs');
  const sweeper = overrides.find(({ name }) => name === 'hydra/sweeper' || name.startsWith('hydra.sweeper.'));
  if (sweeper !== undefined) {
    throw refuse(
      `${showValue(sweeper.key)}: Hydra's sweepers can't run here; leave it out, and write the values as lr=0.1,0.01`,
    );
  }
  // The last one counts, as in Hydra.
  const last = new Map(
    overrides.filter(({ name }) => name !== 'hydra/launcher').map((each) => [each.key, each]),
  );
  const asked = ask(words, [...last.values()], project, refuse);
  last.delete(asked === null ? '' : 'hydra.sweep.dir');
  const parameters: SearchParameter[] = [];
  const texts = new Map<string, ReadonlyMap<Value, string>>();
  for (const { key, name, value } of last.values()) {
    if (isHydras(name) && !(value?.kind === 'values' && value.isSweep)) continue;
    const { distribution, textOf } = distributionOf(name, value, asked, refuse);
    parameters.push({ path: [key], name: parameterOf(key), distribution });
    texts.set(key, textOf);
  }
  const fill = (values: Values): string[] =>
    Array.from(last.values(), ({ key, name, value }) => {
      if (value === null) return key;
      if (value.kind === 'values' && !value.isSweep) return `${key}=${value.texts[0]}`;
      const chosen = values[parameterOf(key)] as Value;
      return `${key}=${texts.get(key)?.get(chosen) ?? (isHydras(name) ? '' : textOfValue(chosen))}`;
    });
  const directory = asked?.directory ?? (last.has('hydra.sweep.dir') ? null : defaultDirectory());
  const commandOf = (values: Values, place: readonly string[]): TaskCommand => ({
    words: [...words, ...fill(values), ...place],
  });
  const spaceOf = (name: string, outputDirectory: string, command: SpaceSweep['command']): SpaceSweep => ({
    ...GRID,
    name,
    location,
    parameters,
    outputDirectory,
    command,
  });
  return {
    parameters: parameters.map(({ name }) => name),
    space: (phase, outputDirectory) =>
      spaceOf(phase, outputDirectory, (values) =>
        commandOf(values, [
          `hydra.run.dir=${quoted(`${outputDirectory}/runs/${taskId(values).slice(0, 14)}`)}`,
        ]),
      ),
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

const OVERRIDE = /^(~|\+{0,2})([\w$][\w$./-]*(?:@[\w$./:-]*)?|@[\w$./:-]+)(?:=(.*))?$/s;

/** The words of a line that start the program, and its overrides. `-m` of Hydra is left out, the one of Python stays. */
function programWords(all: readonly string[]): { words: string[]; inLine: string[] } {
  const isPython = /(?:^|\/)(?:python|pypy)[\d.]*$/.test(all[0] ?? '');
  const start = isPython && all[1] === '-m' ? 3 : 1;
  const words = all.slice(0, start);
  const inLine: string[] = [];
  for (const word of all.slice(start)) {
    if (word === '-m' || word === '--multirun') continue;
    const match = word.startsWith('-') ? null : OVERRIDE.exec(word);
    if (match !== null && (match[3] !== undefined || match[1] === '~')) inLine.push(word);
    else words.push(word);
  }
  return { words, inLine };
}

function parseOverride(word: string, refuse: Refuse): Override {
  const match = OVERRIDE.exec(word);
  const [, sign = '', name = '', text] = match ?? [];
  if (match === null || (text === undefined && sign !== '~')) {
    throw refuse(
      `${showValue(word)} is no override such as lr=0.1,0.01; the program stands in quotes behind --hydra: --hydra 'python train.py'`,
    );
  }
  const refuseIt: Refuse = (why) => refuse(`${showValue(word)}: ${why}`);
  return { key: sign + name, name, value: text === undefined ? null : parseSweep(text, refuseIt) };
}

/** The parameter of the tasks for an override with this key. */
function parameterOf(key: string): string {
  return key.replace(/^\++/, '');
}

function isHydras(name: string): boolean {
  return /^hydra[./]/.test(name);
}

/** `a,b`, or one element. */
function parseSweep(text: string, refuse: Refuse): Parsed {
  const parts = splitElements(text, refuse);
  if (parts.length <= 1) return parseElement(parts[0] ?? '', refuse);
  return { kind: 'values', texts: parts.map((part) => single(part, refuse)), isSweep: true };
}

/** An element that is no sweep. */
function single(text: string, refuse: Refuse): string {
  const element = parseElement(text, refuse);
  if (element.kind !== 'values' || element.isSweep)
    throw refuse(`${showValue(text)}: a sweep in a sweep; write one list`);
  return element.texts[0] as string;
}

/** A call of a function in an override. */
interface Call {
  readonly name: string;
  readonly text: string;
  /** Arguments by place, and by name. */
  readonly all: readonly string[];
  readonly named: ReadonlyMap<string, string>;
  readonly refuse: Refuse;
}

const FUNCTIONS: Readonly<Record<string, (call: Call) => Parsed>> = {
  int: converted,
  float: converted,
  str: converted,
  bool: converted,
  json_str: converted,
  choice({ all, refuse }) {
    if (all.length === 0) throw refuse('choice() has no values');
    return { kind: 'values', texts: all.map((each) => single(each, refuse)), isSweep: true };
  },
  range(call) {
    const { named, all, refuse } = call;
    const [first, second, third] = ['start', 'stop', 'step'].map(
      (key, i) => named.get(key) ?? all[i - (named.has('start') ? 1 : 0)],
    );
    const start = second === undefined ? '0' : numberIn(call, first, 'start');
    const stop = numberIn(call, second ?? first, 'stop');
    const step = third === undefined ? '1' : numberIn(call, third, 'step');
    return { kind: 'values', texts: rangeOf(start, stop, step, refuse), isSweep: true };
  },
  interval(call) {
    const { named, all, refuse } = call;
    const min = Number(numberIn(call, named.get('start') ?? all[0], 'start'));
    const max = Number(numberIn(call, named.get('end') ?? all.at(-1), 'end'));
    if (!(min < max)) throw refuse(`interval: ${min} must be smaller than ${max}`);
    return { kind: 'interval', min, max, isInteger: false };
  },
  glob({ named, all, refuse }) {
    const list = (each: string | undefined) => {
      if (each === undefined) return [];
      const items = /^\[(.*)\]$/s.exec(each);
      return (items ? splitElements(items[1] as string, refuse) : [each]).map((item) =>
        item.replace(/^(['"])(.*)\1$/s, '$2'),
      );
    };
    const include = list(named.get('include') ?? all[0]);
    return {
      kind: 'glob',
      include,
      exclude: list(named.get('exclude') ?? all[named.has('include') ? 0 : 1]),
    };
  },
  tag: ({ all, refuse }) => parseElement(all.at(-1) ?? '', refuse),
  sort: sorted,
  shuffle: sorted,
  extend_list: ({ text }) => plain(text),
};

function parseElement(text: string, refuse: Refuse): Parsed {
  const call = /^([A-Za-z_][\w-]*)\s*\((.*)\)$/s.exec(text);
  if (call === null) {
    if (/^[^'"[{$\\]*[()]/.test(text))
      throw refuse(
        `${showValue(text)}: parentheses belong to functions such as range(1,10); put a text in quotes`,
      );
    return plain(normalised(text));
  }
  const [, name = '', inside = ''] = call;
  const parse = Object.hasOwn(FUNCTIONS, name) ? FUNCTIONS[name] : undefined;
  if (parse === undefined)
    throw refuse(`there is no function ${showValue(name)}; Hydra has ${listWords(Object.keys(FUNCTIONS))}`);
  const named = new Map<string, string>();
  const all: string[] = [];
  for (const argument of splitElements(inside, refuse)) {
    const [, key, value] = /^([A-Za-z_]\w*)\s*=\s*(.*)$/s.exec(argument) ?? [];
    if (key !== undefined && value !== undefined) named.set(key, value);
    else all.push(argument);
  }
  const inner = named.get('sweep') ?? named.get('value') ?? named.get('list');
  if (inner !== undefined) all.push(inner);
  return parse({ name, text, all, named, refuse });
}

function plain(text: string): Parsed {
  return { kind: 'values', texts: [text], isSweep: false };
}

function numberIn({ name, refuse }: Call, argument: string | undefined, what: string): string {
  const each = argument === undefined ? '' : single(argument, refuse);
  if (!INT.test(each) && !FLOAT.test(each)) throw refuse(`${name}: ${what} must be a number`);
  return each;
}

function sorted({ name, text, all, named, refuse }: Call): Parsed {
  const sweep = parseSweep(all.join(','), refuse);
  if (sweep.kind !== 'values' || !sweep.isSweep) return plain(text);
  if (name === 'shuffle') return sweep; // runs go to GPUs as they come free; a stable order lets the sweep continue
  const isNumeric = sweep.texts.every((each) => INT.test(each) || FLOAT.test(each));
  const texts = sweep.texts.toSorted((a, b) => (isNumeric ? Number(a) - Number(b) : a < b ? -1 : 1));
  return { ...sweep, texts: /^true$/i.test(named.get('reverse') ?? '') ? texts.reverse() : texts };
}

function converted({ name, all, refuse }: Call): Parsed {
  const sweep = parseSweep(all.join(','), refuse);
  if (sweep.kind === 'glob') throw refuse(`${name}(): a glob can't be converted`);
  if (sweep.kind === 'values') return { ...sweep, texts: sweep.texts.map((each) => cast(name, each)) };
  if (name !== 'int') return { ...sweep, isInteger: false };
  return { ...sweep, min: Math.trunc(sweep.min), max: Math.trunc(sweep.max), isInteger: true };
}

/** Parts between commas, without blanks around them. Quotes, brackets and backslashes are respected. */
function splitElements(text: string, refuse: Refuse): string[] {
  const parts: string[] = [];
  const open: string[] = [];
  let part = '';
  for (let i = 0; i < text.length; i++) {
    const c = text[i] as string;
    if (c === '\\') {
      part += c + (text[++i] ?? '');
    } else if (c === "'" || c === '"') {
      const end = new RegExp(`(?<!\\\\)(?:\\\\\\\\)*${c}`, 'g');
      end.lastIndex = i + 1;
      const close = end.exec(text);
      if (close === null) throw refuse(`the quote ${c} isn't closed`);
      part += text.slice(i, end.lastIndex);
      i = end.lastIndex - 1;
    } else if (c === ',' && open.length === 0) {
      parts.push(part.trim());
      part = '';
    } else {
      if ('([{'.includes(c)) open.push(c);
      else if (')]}'.includes(c)) {
        if (open.pop() !== '([{'[')]}'.indexOf(c)]) throw refuse(`${c} closes nothing; put a text in quotes`);
      }
      part += c;
    }
  }
  const left = open.at(-1);
  if (left !== undefined) throw refuse(`${left} isn't closed; put a text in quotes`);
  parts.push(part.trim());
  if (parts.length > 1 && parts.includes('')) throw refuse('a value is missing before or after a comma');
  return parts.length === 1 && parts[0] === '' ? [] : parts;
}

const INT = /^[+-]?(?:0|[1-9](?:_?\d)*)$/;
const FLOAT =
  /^[+-]?(?:(?:0|[1-9](?:_?\d)*)\.|(?:0|[1-9](?:_?\d)*)?\.\d(?:_?\d)*|(?:(?:0|[1-9](?:_?\d)*)\.?|(?:0|[1-9](?:_?\d)*)?\.\d(?:_?\d)*)[eE][+-]?\d(?:_?\d)*)$/;

/** An element as Hydra's sweeper writes it. */
function normalised(text: string): string {
  if (INT.test(text)) return String(BigInt(text.replaceAll('_', '').replace('+', '')));
  if (FLOAT.test(text)) return pythonFloat(Number(text.replaceAll('_', '')));
  if (/^(?:true|false)$/i.test(text)) return text[0]?.toUpperCase() + text.slice(1).toLowerCase();
  return /^null$/i.test(text) ? 'null' : text;
}

/** A float as Python's repr() shows it. */
function pythonFloat(number: number): string {
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-4 || size >= 1e16))
    return number.toExponential().replace(/e([+-])(\d)$/, 'e$10$2');
  return Number.isInteger(number) ? `${number}.0` : String(number);
}

/** The result of int(), float() and so on; Hydra itself converts the others. */
function cast(name: string, text: string): string {
  const isNumber = INT.test(text) || FLOAT.test(text);
  if (name === 'int' && isNumber) return String(Math.trunc(Number(text)));
  if (name === 'float' && isNumber) return pythonFloat(Number(text));
  if (name === 'bool' && isNumber) return Number(text) === 0 ? 'False' : 'True';
  if (name === 'str' && isNumber) return text; // a number again, as in Hydra
  return `${name}(${text})`;
}

const MAX_RANGE = 1_000_000;

function rangeOf(start: string, stop: string, step: string, refuse: Refuse): string[] {
  const [first, end, by] = [Number(start), Number(stop), Number(step)];
  if (by === 0) throw refuse('range: its step is 0');
  const isWhole = [start, stop, step].every((each) => INT.test(each));
  const texts: string[] = [];
  for (let i = 0, value = first; by > 0 ? value < end : value > end; value = decimalSum(first, ++i * by)) {
    if (texts.length === MAX_RANGE)
      throw refuse(`range: it has more than ${MAX_RANGE.toLocaleString('en')} values`);
    texts.push(isWhole ? String(value) : pythonFloat(value));
  }
  if (texts.length === 0)
    throw refuse(`range: it is empty, as ${stop} is not ${by > 0 ? 'above' : 'below'} ${start}`);
  return texts;
}

/** Hydra counts in decimals. */
function decimalSum(a: number, b: number): number {
  return Number((a + b).toPrecision(15));
}

/** A value for the table and the task's file: numbers as numbers, texts without quotes. */
function typedValue(text: string): Value {
  if (INT.test(text) || FLOAT.test(text)) {
    const number = Number(text);
    return String(number) === text ? number : new Literal(number, text);
  }
  if (text === 'True' || text === 'False') return text === 'True';
  if (text === 'null') return null;
  const quote = /^(['"])(.*)\1$/s.exec(text);
  return quote ? (quote[2] as string).replaceAll(`\\${quote[1]}`, quote[1] as string) : text;
}

/** A number that was chosen, for Hydra. */
function textOfValue(value: Value): string {
  return value instanceof Literal ? value.text : String(value);
}

function distributionOf(
  name: string,
  value: Parsed | null,
  asked: Asked | null,
  refuse: Refuse,
): Pick<SearchParameter, 'distribution'> & { textOf: ReadonlyMap<Value, string> } {
  if (value?.kind === 'interval') {
    const { min, max, isInteger } = value;
    const rounding = isInteger ? 'integer' : null;
    return { distribution: { kind: 'uniform', min, max, log: false, rounding }, textOf: new Map() };
  }
  const texts =
    value === null ? [''] : value.kind === 'glob' ? options(name, value, asked, refuse) : value.texts;
  const textOf = new Map(texts.map((text) => [typedValue(text), text]));
  return { distribution: { kind: 'choice', values: [...textOf.keys()], weights: null }, textOf };
}

/** The answer of the program. */
interface Asked {
  /** The directory of a sweep that begins now. */
  directory: string;
  /** The options of configuration groups. */
  groups: ReadonlyMap<string, readonly string[]>;
}

const ASK_TIMEOUT_MS = 120_000;
const MARK = 'gpu-owner asks:';

/**
 * Asks the program for its help, in words that make Hydra tell where its runs go, and which options groups have.
 * @returns null: nothing says that it is one of Hydra's: it would train
 */
function ask(
  words: readonly string[],
  overrides: readonly Override[],
  project: string,
  refuse: Refuse,
): Asked | null {
  const globs = overrides.some(({ value }) => value?.kind === 'glob');
  const script = words.find((word) => word.endsWith('.py'));
  if (!globs && !(script !== undefined && mentionsHydra(join(project, script)))) return null;
  const fixed = overrides.flatMap(({ key, value }) =>
    value === null ? [key] : value.kind === 'values' ? [`${key}=${value.texts[0]}`] : [],
  );
  const template = `hydra.help.template='${MARK}\${hydra.sweep.dir}\n$APP_CONFIG_GROUPS'`;
  const { stdout, stderr, error } = spawnSync(
    words[0] as string,
    [...words.slice(1), '--help', ...fixed, template],
    {
      cwd: project,
      encoding: 'utf8',
      timeout: ASK_TIMEOUT_MS,
      killSignal: 'SIGKILL',
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, CUDA_VISIBLE_DEVICES: '' },
    },
  );
  const answer = stdout?.slice(stdout.indexOf(MARK));
  if (!answer?.startsWith(MARK)) {
    const why = sanitize(error?.message ?? stderr?.trim().split('\n').at(-1) ?? '', 300);
    const text = `${shellWords([...words, '--help'])} doesn't tell which options there are${why === '' ? '' : `: ${why}`}`;
    if (globs) throw refuse(`glob: ${text}`);
    warn(`${text}; the runs go to multirun/`);
    return null;
  }
  const [directory = '', ...lines] = answer.slice(MARK.length).split('\n');
  const groups = new Map(
    lines.flatMap((line) => {
      const [, group, names] = /^([\w./-]+): (.*)$/.exec(line) ?? [];
      return group === undefined || names === undefined ? [] : [[group, names.split(', ')] as const];
    }),
  );
  return { directory, groups };
}

function mentionsHydra(path: string): boolean {
  try {
    return /\bhydra\b/.test(readFileSync(path, 'utf8'));
  } catch {
    return false;
  }
}

function options(
  name: string,
  { include, exclude }: Extract<Parsed, { kind: 'glob' }>,
  asked: Asked | null,
  refuse: Refuse,
): readonly string[] {
  const group = name.replace(/@.*/, '');
  const known = asked?.groups.get(group);
  if (known === undefined) throw refuse(`glob: the program has no group ${showValue(group)}`);
  const matches = (each: string, globs: readonly string[]) =>
    globs.some((glob) => globPattern(glob).test(each));
  const found = known.filter((each) => matches(each, include) && !matches(each, exclude));
  if (found.length === 0)
    throw refuse(`glob: none of ${sanitize(known.join(', '), 200)} in ${showValue(group)} matches`);
  return found;
}

/** As Python's fnmatch. */
function globPattern(glob: string): RegExp {
  const source = glob.replace(/\[!?\]?[^\]]*\]|[\s\S]/g, (part) => {
    if (part === '*') return '.*';
    if (part === '?') return '.';
    if (part.length > 1) return part.replace('[!', '[^');
    return part.replace(/[.+^${}()|[\]\\]/, '\\$&');
  });
  return new RegExp(`^(?:${source})$`, 's');
}

function quoted(directory: string): string {
  return /^[\w./@+-]+$/.test(directory) ? directory : `'${directory.replaceAll("'", "\\'")}'`;
}

/** `multirun/2026-11-26/09-30-00`, Hydra's default. */
function defaultDirectory(): string {
  return `multirun/${timestamp().replace(' ', '/').replaceAll(':', '-')}`;
}
