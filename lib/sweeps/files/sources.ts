import { errorMessage } from '../../errors.ts';
import { closest, formatCount, listWords, showValue } from '../../platform/index.ts';
import { DEFAULT_SEED, formatValue, Literal, numberInString, type Value } from '../task/index.ts';
import { type CommandTemplate, commandTemplate, mistake, type SourceLocation } from './command.ts';
import { type Distribution, decimal } from './distribution.ts';
import { checkParameterName, checkPhaseName } from './names.ts';
import { type Given, makeSpace, type SearchParameter, type Space } from './space.ts';
import { isWandb, parseWandb } from './wandb.ts';
import {
  type MapEntry,
  type MapNode,
  type Node,
  plainScalar,
  type ReadScalar,
  readYAMLTree,
  toValue,
  truthOf,
} from './yaml-tree.ts';

const EXAMPLE = "'exp1: {combinations: [{seed: [42, 43]}]}'";
/** Keys of the whole file: everything else in it is a phase. */
const FILE_KEYS = ['defaults', 'seeds', 'command', 'shell'];
/** They belong to the whole file. */
const NO_PARAMETERS = ['command', 'defaults', 'combinations'];

type Fail = (line: number, text: string) => Error;

/**
 * The phases of a sweep file; the space of a file of another tool.
 * @param path for messages
 * @param override a command that is used instead of the file's
 * @throws ERR_CONFIGURATION, with file, line and key
 */
export function parseSweepFile(
  text: string,
  path: string,
  override: CommandTemplate | null,
  shell: boolean,
): Space[] {
  const fail: Fail = (line, what) => mistake({ file: path, line }, what);
  const tree = readYAMLTree(text, path);
  if (tree === null) throw fail(1, `it is empty; a sweep has a phase such as ${EXAMPLE}`);
  if (tree.kind !== 'map') throw fail(tree.line, `it must be a map with a phase such as ${EXAMPLE}`);
  if (isWandb(tree)) return [parseWandb(tree, path, override)];
  const command = override ?? fileCommand(tree, path, shell, fail);
  const defaults = parseDefaults(tree.entries.get('defaults'), fail);
  const seeds = parseSeeds(tree.entries.get('seeds'), fail);
  const phases: Space[] = [];
  for (const [name, { node, line }] of tree.entries) {
    if (FILE_KEYS.includes(name)) continue;
    if (node.kind !== 'map' || !node.entries.has('combinations')) throw notAPhase(name, node, line, fail);
    checkPhaseName(name, (why) => fail(line, why));
    phases.push(parsePhase(name, node, line, defaults));
  }
  if (phases.length === 0) throw fail(tree.line, `there is no phase in it; add one such as ${EXAMPLE}`);
  return phases;

  function parsePhase(
    name: string,
    map: MapNode,
    line: number,
    inherited: ReadonlyMap<string, Given>,
  ): Space {
    const fixed = new Map(inherited);
    for (const [key, entry] of map.entries) {
      if (key !== 'combinations') fixed.set(key, parameter(key, entry, `${showValue(name)}: `));
    }
    const axes = parseCombinations(name, map.entries.get('combinations') as MapEntry, fail);
    const hasSeed = axes.some((axis) => axis.name === 'seed');
    if (seeds !== null && (hasSeed || map.entries.has('seed'))) {
      throw fail(line, `${showValue(name)} has 'seed', and the file has 'seeds'; remove one of them`);
    }
    if (seeds === null && !hasSeed && !fixed.has('seed'))
      axes.push({ name: 'seed', distribution: choice([DEFAULT_SEED]) });
    if (seeds !== null) axes.push(seeds);
    const directory = axes.some((axis) => axis.name === 'output_dir') ? undefined : fixed.get('output_dir');
    fixed.delete('output_dir');
    return makeSpace({
      name,
      location: { file: path, line },
      fixed: new Map(Array.from(fixed, ([key, { value }]) => [key, value])),
      parameters: axes,
      ...(directory && { directory }),
      command,
    });
  }

  function parseDefaults(entry: MapEntry | undefined, failing: Fail): Map<string, Given> {
    if (entry === undefined || (entry.node.kind === 'scalar' && entry.node.value === null)) return new Map();
    if (entry.node.kind !== 'map')
      throw failing(entry.line, "defaults: it must be a map such as '{seed: 42}'");
    return new Map(
      Array.from(entry.node.entries, ([key, each]) => [key, parameter(key, each, 'defaults: ')]),
    );
  }

  function parameter(key: string, { node, line }: MapEntry, where: string): Given {
    const refuse = (why: string) => fail(line, `${where}${why}`);
    if (NO_PARAMETERS.includes(key)) {
      throw refuse(
        key === 'command'
          ? "'command' belongs to the file, not to a phase or its defaults: write it at the left margin"
          : `${showValue(key)} can't be a parameter`,
      );
    }
    checkParameterName(key, refuse);
    if (node.kind !== 'scalar' && (key === 'seed' || key === 'output_dir')) {
      throw refuse(
        `${showValue(key)} must be a single value${key === 'seed' ? "; several are 'seeds: [42, 43]' at the left margin, or '- seed: [42, 43]' below combinations" : ''}`,
      );
    }
    return { value: toValue(node), location: { file: path, line: node.line } };
  }
}

/** `seeds: [42, 43]` is an axis of every phase, the one that varies fastest. null: the file has none. */
function parseSeeds(entry: MapEntry | undefined, fail: Fail): SearchParameter | null {
  if (entry === undefined) return null;
  const values = entry.node.kind === 'list' ? entry.node.items.map(toValue) : [];
  if (values.length > 0 && values.every(Number.isSafeInteger))
    return { name: 'seed', distribution: choice(values) };
  throw fail(
    entry.line,
    "seeds: it must be a list of plain whole numbers such as '[42, 43]'; a phase can't have this name",
  );
}

/** The keys of all maps in the list multiply; also those of one map, which needs no list around it. */
function parseCombinations(phase: string, entry: MapEntry, fail: Fail): SearchParameter[] {
  const where = `${showValue(phase)}: combinations`;
  const right = "use a list such as '[{width: [1, 2]}, {seed: [42, 43]}]'";
  const { node: all } = entry;
  if (all.kind === 'scalar') throw fail(entry.line, `${where}: ${right}`);
  const items = all.kind === 'list' ? all.items : [all];
  if (items.length === 0) throw fail(entry.line, `${where}: it is an empty list; ${right}`);
  const axes = new Map<string, SearchParameter>();
  for (const item of items) {
    if (item.kind !== 'map' || item.entries.size === 0) {
      throw fail(item.line, `${where}: an entry must be a map of lists; ${right}`);
    }
    for (const [key, { node, line }] of item.entries) {
      const refuse = (why: string) => fail(line, `${where}: ${why}`);
      if (key === 'combinations' || key === 'defaults')
        throw refuse(`${showValue(key)} can't be a parameter`);
      checkParameterName(key, refuse);
      if (axes.has(key)) throw refuse(`${showValue(key)} is given twice; put all its values into one list`);
      if (node.kind === 'map' && node.entries.has('min')) {
        axes.set(key, { name: key, distribution: distributionOf(node, refuse) });
        continue;
      }
      if (node.kind !== 'list') {
        const shown = node.kind === 'scalar' ? `[${formatValue(node.value)}]` : '[...]';
        throw refuse(`${showValue(key)} needs a list of values, such as ${showValue(`${key}: ${shown}`)}`);
      }
      if (node.items.length === 0)
        throw refuse(`${showValue(key)} has an empty list; give it values, or leave it out`);
      const values = node.items.map((each) => {
        if (each.kind !== 'scalar' && (key === 'seed' || key === 'output_dir')) {
          throw fail(
            each.line,
            `${where}: a value of ${showValue(key)} must be a single one, not a ${each.kind}`,
          );
        }
        return toValue(each);
      });
      axes.set(key, { name: key, distribution: choice(values) });
    }
  }
  return Array.from(axes.values());
}

const DISTRIBUTION_KEYS = ['min', 'max', 'log', 'step'];
const WHOLE = /^[-+]?\d+$/;

/** `{min: 1, max: 64}`, with `log: true` or `step: 8`: values for searches. */
function distributionOf({ entries }: MapNode, refuse: (why: string) => Error): Distribution {
  const right = `use a map such as '{min: 0.001, max: 0.1, log: true}'; its keys are ${listWords(DISTRIBUTION_KEYS)}`;
  const other = Array.from(entries.keys()).find((key) => !DISTRIBUTION_KEYS.includes(key));
  if (other !== undefined) throw refuse(`${showValue(other)} has no meaning here; ${right}`);
  const text = (key: string) => {
    const node = entries.get(key)?.node;
    return node?.kind === 'scalar' ? formatValue(node.value) : '';
  };
  const log = text('log');
  if (!['', 'true', 'false'].includes(log)) throw refuse(right);
  return uniform(text('min'), text('max'), log === 'true', text('step'), refuse);
}

/** Values between both ends: whole numbers where both are written as such. @param step '': none */
function uniform(
  first: string,
  last: string,
  log: boolean,
  step: string,
  refuse: (why: string) => Error,
): Distribution {
  const [min, max] = [Number(first), Number(last)];
  if (first === '' || last === '' || !Number.isFinite(max - min) || min >= max)
    throw refuse(
      `it needs a number as min, and a larger one as max, not ${showValue(first)} and ${showValue(last)}`,
    );
  if (log && min <= 0) throw refuse(`with log, min must be larger than 0, not ${first}`);
  if (step !== '' && (log || !(Number(step) > 0))) throw refuse('step must be a number above 0, without log');
  const isWhole = WHOLE.test(first) && WHOLE.test(last);
  if (step !== '') {
    const rounding = Number(step);
    // Multiples within both ends.
    const [low, high] = [Math.ceil(min / rounding - 1e-9), Math.floor(max / rounding + 1e-9)];
    if (low >= high) throw refuse(`there are no two multiples of ${step} from ${first} to ${last}`);
    return { kind: 'range', first: decimal(low * rounding), step: rounding, count: high - low + 1 };
  }
  return { kind: 'uniform', min, max, log, rounding: isWhole ? 'integer' : null };
}

function fileCommand(tree: MapNode, path: string, always: boolean, fail: Fail): CommandTemplate | null {
  const entry = tree.entries.get('command');
  const shell = tree.entries.get('shell');
  let useShell = always;
  if (shell) {
    const value = truthOf(shell.node);
    if (value === null) {
      throw fail(
        shell.line,
        "shell: it must be true or false: whether a shell runs the command; a phase can't have this name",
      );
    }
    useShell ||= value;
    if (entry === undefined)
      throw fail(shell.line, "shell: there is no 'command'; add one, or remove 'shell'");
  }
  if (entry === undefined) return null;
  const { node, line } = entry;
  const refuse = () =>
    fail(
      line,
      "command: it must be a line or a list of words, such as 'python train.py --seed {seed}'; a phase can't have this name",
    );
  const word = (each: Node): string => {
    if (each.kind !== 'scalar' || each.value === null) throw refuse();
    return formatValue(each.value);
  };
  const words = node.kind === 'list' ? node.items.map(word) : word(node);
  return commandTemplate(words, useShell, { file: path, line: node.line });
}

function notAPhase(name: string, node: Node, line: number, fail: Fail): Error {
  const shown = showValue(name);
  const reserved = closest(name, FILE_KEYS);
  if (reserved) return fail(line, `there is no key ${shown}; did you mean '${reserved}'?`);
  const keys = node.kind === 'map' ? Array.from(node.entries.keys()) : [];
  const meant = keys.find((key) => closest(key, ['combinations']) !== null);
  if (meant !== undefined)
    return fail(line, `${shown}: it has ${showValue(meant)}; did you mean 'combinations'?`);
  const others = listWords(FILE_KEYS.map(showValue));
  return fail(
    line,
    `${shown} has no 'combinations', so it isn't a phase; add them, such as ${EXAMPLE}, or move parameters that all phases share to 'defaults' (other keys are ${others})`,
  );
}

const GRID_EXAMPLE = 'width=1,2 seed=42..44';
const QUOTED = /'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"/sy;
const RANGE = /^(.+?)\.\.(.+?)(?:\.\.(.+))?$/s;

/**
 * The axes of an inline grid: `width=1,2`, `seed=42..44`, `lr=1e-3,1e-4`, `name='a,b',c`, `layers=[64,64],[128]`. Values are scalars
 * as in sweep files, but `1e-3` is a number; ranges are of whole numbers and include both ends, `0..10..2` has a step.
 * @throws ERR_INVALID_ARGUMENT
 */
export function parseGrid(words: readonly string[]): SearchParameter[] {
  const axes = new Map<string, SearchParameter>();
  for (const word of words) {
    const sign = word.indexOf('=');
    if (sign < 0) {
      throw mistake(
        { option: '--grid' },
        `${showValue(word)} has no '='; use NAME=VALUE,VALUE, such as ${GRID_EXAMPLE}`,
      );
    }
    const key = word.slice(0, sign);
    const location = { option: `--grid ${showValue(word)}` };
    checkParameterName(key, (why) => mistake(location, why));
    if (axes.has(key))
      throw mistake(location, `${showValue(key)} is given twice; put all its values into one list`);
    const distribution = continuous(word.slice(sign + 1), (why) => mistake(location, why));
    axes.set(key, { name: key, distribution: distribution ?? listed(key, word.slice(sign + 1), location) });
  }
  return Array.from(axes.values());
}

/** A list, or a range of whole numbers, which are counted rather than kept. */
type Listed = Extract<Distribution, { kind: 'choice' | 'range' }>;

function listed(key: string, text: string, location: SourceLocation): Listed {
  const texts = splitValues(text, location);
  const segments = texts.map((each) => segment(key, each, location));
  const [first, ...others] = segments as [Listed, ...Listed[]];
  if (others.length === 0) return first;
  return choice(
    segments.flatMap((each) => {
      if (each.kind === 'choice') return each.values;
      if (each.count > MAX_LISTED)
        throw mistake(location, `a range beside other values has more than ${formatCount(MAX_LISTED)}`);
      return Array.from({ length: each.count }, (_, i) => each.first + i * each.step);
    }),
  );
}

function choice(values: readonly Value[]): Listed {
  return { kind: 'choice', values };
}

/** More of them are surely a mistake. */
const MAX_LISTED = 1_000_000;

const CONTINUOUS = /^(log:)?([-+]?[.\d][\d.eE+-]*?)\.\.([-+]?[.\d][\d.eE+-]*)$/;

/** `0.0..0.5` and `log:1e-5..0.1`: values for searches. null: a list, or a range of whole numbers. */
function continuous(text: string, refuse: (why: string) => Error): Distribution | null {
  const [, log, first = '', last = ''] = CONTINUOUS.exec(text) ?? [];
  if (Number.isNaN(Number(first)) || Number.isNaN(Number(last))) return null;
  if (log === undefined && (first === '' || (WHOLE.test(first) && WHOLE.test(last)))) return null;
  return uniform(first, last, log !== undefined, '', refuse);
}

function splitValues(text: string, location: SourceLocation): string[] {
  if (text === '') throw mistake(location, `it has no values; use NAME=VALUE,VALUE, such as ${GRID_EXAMPLE}`);
  const values: string[] = [];
  let value = '';
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    // Quotes count where a value begins, and in lists.
    QUOTED.lastIndex = i;
    const quoted = depth > 0 || value.trim() === '' ? QUOTED.exec(text) : null;
    const piece = quoted?.[0] ?? (text[i] as string);
    i += piece.length - 1;
    if (piece === '[' && (depth > 0 || value.trim() === '')) depth++;
    if (piece === ']' && depth > 0) depth--;
    if (piece === ',' && depth === 0) {
      values.push(value);
      value = '';
    } else {
      value += piece;
    }
  }
  values.push(value);
  return values.map((each) => each.trim());
}

function segment(key: string, text: string, location: SourceLocation): Listed {
  const refuse = (why: string) => mistake(location, why);
  if (text === '') throw refuse("a value is missing before or after a comma; write '' for an empty one");
  if (text.includes('\0')) throw refuse('it has the character U+0000');
  if (/^['"[]/.test(text)) {
    const value = quotedOrList(text, refuse);
    if (Array.isArray(value) && (key === 'seed' || key === 'output_dir')) {
      throw refuse(`a value of ${showValue(key)} must be a single one, not a list`);
    }
    return choice([value]);
  }
  return range(text, refuse) ?? choice([scalar(text, refuse)]);
}

/** A command line is no file for PyYAML: what looks like a number is one. */
const scalar: ReadScalar = (text, refuse) => {
  const value = plainScalar(text, refuse);
  const number = typeof value === 'string' ? numberInString(value) : null;
  return number === null ? value : new Literal(number, text);
};

/** As in YAML. */
function quotedOrList(text: string, refuse: (why: string) => Error): Value {
  try {
    const node = readYAMLTree(text, '--grid', scalar);
    if (node === null || node.kind === 'map') throw refuse(`${showValue(text)} isn't a value`);
    return toValue(node);
  } catch (error) {
    throw refuse(
      `${showValue(text)} is neither a text in quotes nor a list in brackets (${errorMessage(error).replace(/^--grid:1: /, '')})`,
    );
  }
}

function range(text: string, refuse: (why: string) => Error): Listed | null {
  const match = RANGE.exec(text);
  if (match === null) return null;
  const parts = match.slice(1).filter((part) => part !== undefined);
  if (!parts.every((part) => /^[-+]?(?:[.\d][\d.eE_+-]*|0[xob][\da-fA-F_]+)$/.test(part))) return null; // such as ../data
  const numbers = parts.map((part) => (/^-?(?:0|[1-9]\d*)$/.test(part) ? Number(part) : Number.NaN));
  if (!numbers.every(Number.isSafeInteger)) {
    throw refuse(
      `the range ${showValue(text)} must have whole decimal numbers, such as 42..44 or 0..10..2; separate other values with commas`,
    );
  }
  const [first, last, given] = numbers as [number, number, number | undefined];
  const step = given ?? 1;
  if (step === 0) throw refuse(`the range ${showValue(text)} has the step 0`);
  if ((last - first) * step < 0) {
    const right = given === undefined ? `${first}..${last}..-1` : `${first}..${last}..${-given}`;
    throw refuse(`the range ${showValue(text)} is empty; did you mean ${right}?`);
  }
  return { kind: 'range', first, step, count: Math.floor((last - first) / step) + 1 };
}
