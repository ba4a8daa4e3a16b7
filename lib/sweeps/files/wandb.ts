// Sweep files of Weights & Biases: https://docs.wandb.ai/guides/sweeps/sweep-config-keys

import { commandProblem } from '../../jobs/index.ts';
import { closest, listWords, shellWords, showValue, warn } from '../../platform/index.ts';
import {
  formatValue,
  Literal,
  stringifyValue,
  type TaskCommand,
  type Value,
  type Values,
} from '../task/index.ts';
import { type CommandTemplate, mistake } from './command.ts';
import { phaseOfFile } from './commands-space.ts';
import { checkParameterName, defaultOutputOf } from './names.ts';
import {
  DEFAULT_ETA,
  type Distribution,
  type EarlyStopping,
  type Metric,
  MIN_ETA,
  makeSpace,
  rungsFrom,
  type SearchMethod,
  type SearchParameter,
  type Space,
} from './space.ts';
import { type MapNode, type Node, numberOf, scalarOf, toValue, truthOf } from './yaml-tree.ts';

type Fail = (line: number, text: string) => Error;

/** Keys for W&B's server and its pages. */
const IGNORED = ['project', 'entity', 'name', 'description', 'controller', 'apiVersion', 'kind', 'version'];
const KEYS = ['program', 'command', 'method', 'parameters', 'metric', 'early_terminate', 'run_cap'];
/** W&B's bayes is a Gaussian process; TPE needs less, and doesn't slow down. */
const METHODS: Readonly<Record<string, SearchMethod | 'grid'>> = {
  grid: 'grid',
  random: 'random',
  bayes: 'tpe',
};
const DEFAULT_COMMAND = ['${env}', '${interpreter}', '${program}', '${args}'];

export function isWandb(tree: MapNode): boolean {
  return (
    tree.entries.get('parameters')?.node.kind === 'map' &&
    ['method', 'program', 'metric'].some((key) => tree.entries.has(key)) &&
    !Array.from(tree.entries.values()).some(
      ({ node }) => node.kind === 'map' && node.entries.has('combinations'),
    )
  );
}

/**
 * @param override the command line after `--`, instead of what the file says
 * @throws ERR_CONFIGURATION, with file and line
 */
export function parseWandb(tree: MapNode, path: string, override: CommandTemplate | null): Space {
  const fail: Fail = (line, text) => mistake({ file: path, line }, text);
  for (const [key, { line }] of tree.entries) {
    if (KEYS.includes(key) || IGNORED.includes(key)) continue;
    const meant = closest(key, [...KEYS, ...IGNORED]);
    const remedy = meant ? `did you mean '${meant}'?` : 'remove it';
    throw fail(line, `${showValue(key)} isn't supported in a sweep file of W&B; ${remedy}`);
  }
  const ignored = IGNORED.filter((key) => tree.entries.has(key));
  if (ignored.length > 0)
    warn(`${path}: ${listWords(ignored)} ${ignored.length > 1 ? 'have' : 'has'} no meaning here`);

  const parameters = parseParameters(tree, fail);
  const name = phaseOfFile(path);
  const location = { file: path, line: tree.line };
  return makeSpace({
    name,
    location,
    method: parseMethod(tree, fail),
    parameters,
    metric: parseMetric(tree, fail),
    trials: parseCap(tree, fail),
    earlyStopping: parseEarlyStopping(tree, fail),
    directory: { value: defaultOutputOf(name), location },
    command: override ?? ownCommand(tree, parameters, fail),
  });
}

function parseMethod(tree: MapNode, fail: Fail): Space['method'] {
  const entry = tree.entries.get('method');
  if (entry === undefined) throw fail(tree.line, "there is no 'method'; add one: grid, random or bayes");
  const word = scalarOf(entry.node);
  const method = typeof word === 'string' && Object.hasOwn(METHODS, word) ? METHODS[word] : undefined;
  if (method !== undefined) return method;
  throw fail(entry.line, `method: ${shown(entry.node)} isn't supported; use grid, random or bayes`);
}

function parseMetric(tree: MapNode, fail: Fail): Metric | null {
  const entry = tree.entries.get('metric');
  if (entry === undefined) return null;
  const map = mapOf(entry.node, () =>
    fail(entry.line, "metric: it must be a map such as '{name: loss, goal: minimize}'"),
  );
  const name = scalarOf(map.entries.get('name')?.node);
  if (typeof name !== 'string' || name === '') throw fail(entry.line, "metric: it needs a 'name'");
  const goal = scalarOf(map.entries.get('goal')?.node) ?? 'minimize';
  if (goal !== 'minimize' && goal !== 'maximize') {
    throw fail(entry.line, "metric: its goal must be 'minimize' or 'maximize'");
  }
  const target = map.entries.get('target');
  return {
    name,
    goal,
    target: target ? numberOf(target.node, () => fail(target.line, 'metric: target must be a number')) : null,
  };
}

function parseCap(tree: MapNode, fail: Fail): number | null {
  const entry = tree.entries.get('run_cap');
  if (entry === undefined) return null;
  const refuse = () => fail(entry.line, 'run_cap: it must be a whole number from 1');
  const cap = numberOf(entry.node, refuse);
  if (!Number.isSafeInteger(cap) || cap < 1) throw refuse();
  return cap;
}

/** As W&B's package `sweeps` reads it, whose schema has `strict` unless the file says otherwise. */
function parseEarlyStopping(tree: MapNode, fail: Fail): EarlyStopping | null {
  const entry = tree.entries.get('early_terminate');
  if (entry === undefined) return null;
  const refuse = (why: string) => fail(entry.line, `early_terminate: ${why}`);
  const map = mapOf(entry.node, () => refuse("it must be a map such as '{type: hyperband, min_iter: 3}'"));
  const type = scalarOf(map.entries.get('type')?.node);
  if (type !== 'hyperband') throw refuse("its type must be 'hyperband'");
  const number = (key: string): number | null => {
    const each = map.entries.get(key);
    return each
      ? numberOf(each.node, () => fail(each.line, `early_terminate: ${key} must be a number`))
      : null;
  };
  const eta = number('eta') ?? DEFAULT_ETA;
  if (!(eta >= MIN_ETA)) throw refuse(`eta must be at least ${MIN_ETA}`);
  const first = number('min_iter');
  const last = number('max_iter');
  const steps = number('s');
  let rungs: number[] = [];
  if (last !== null) {
    if (steps === null) throw refuse("max_iter needs 's', the number of times at which runs are stopped");
    for (let rung = last / eta, i = 0; rung >= 1 && i < steps; rung /= eta, i++)
      rungs.unshift(Math.floor(rung));
  } else if (first !== null) {
    if (first < 1) throw refuse('min_iter must be at least 1');
    rungs = rungsFrom(first, eta);
  } else throw refuse("it needs 'min_iter', or 'max_iter' and 's'");
  rungs = Array.from(new Set(rungs));
  if (rungs.length === 0) throw refuse('nothing would ever be stopped; use a larger max_iter or s');
  return { rungs, eta, strict: truthOf(map.entries.get('strict')?.node) !== false };
}

interface NestedParameter extends SearchParameter {
  /** The keys that lead to it, which are its name when joined by dots. */
  readonly path: readonly string[];
}

function parseParameters(tree: MapNode, fail: Fail): NestedParameter[] {
  const found = new Map<string, NestedParameter>();
  // In W&B's order, in which its grids and its command lines have them.
  const visit = (node: Node, line: number, above: readonly string[]) => {
    const refuse = (why: string) => fail(line, `parameters: ${why}`);
    const map = mapOf(node, () => refuse("it must be a map such as '{lr: {values: [0.1, 0.01]}}'"));
    for (const [key, entry] of [...map.entries].sort(([a], [b]) => (a < b ? -1 : 1))) {
      const path = [...above, key];
      const name = path.join('.');
      const refuseIt = (why: string) => fail(entry.line, `parameter ${showValue(name)}: ${why}`);
      checkParameterName(name, refuseIt);
      const inner = mapOf(entry.node, () =>
        refuseIt(`it must be a map such as '{value: ${shown(entry.node).replace(/^'|'$/g, '')}}'`),
      );
      const nested = inner.entries.get('parameters');
      if (nested !== undefined && inner.entries.size === 1) visit(nested.node, nested.line, path);
      else if (found.has(name)) throw refuseIt('it is given twice; remove one');
      else found.set(name, { path, name, distribution: parseDistribution(inner, refuseIt) });
    }
  };
  const entry = tree.entries.get('parameters');
  if (entry !== undefined) visit(entry.node, entry.line, []);
  if (found.size === 0) throw fail(entry?.line ?? tree.line, 'parameters: there are none; add one');
  return [...found.values()];
}

/** The keys that each distribution has. */
const RANGE_KEYS = ['min', 'max'];
const DISTRIBUTIONS: Readonly<Record<string, readonly string[]>> = {
  constant: ['value'],
  categorical: ['values'],
  int_uniform: RANGE_KEYS,
  uniform: RANGE_KEYS,
  q_uniform: [...RANGE_KEYS, 'q'],
  log_uniform_values: RANGE_KEYS,
  q_log_uniform_values: [...RANGE_KEYS, 'q'],
};

function parseDistribution(map: MapNode, refuse: (why: string) => Error): Distribution {
  const node = (key: string) => map.entries.get(key)?.node;
  const named = scalarOf(node('distribution'));
  const kind = typeof named === 'string' ? named : inferred(map, refuse);
  const keys = Object.hasOwn(DISTRIBUTIONS, kind) ? DISTRIBUTIONS[kind] : undefined;
  if (keys === undefined) {
    const all = listWords(Object.keys(DISTRIBUTIONS), 'or');
    throw refuse(`the distribution ${showValue(kind)} isn't supported; use one of ${all}`);
  }
  const odd = Array.from(map.entries.keys()).find((key) => key !== 'distribution' && !keys.includes(key));
  if (odd !== undefined)
    throw refuse(`${showValue(odd)} has no meaning for the distribution ${kind}; remove it`);
  const number = (key: string, fallback?: number): number => {
    const each = node(key);
    if (each === undefined && fallback !== undefined) return fallback;
    return numberOf(each, () => refuse(`the distribution ${kind} needs a number as ${key}`));
  };
  if (kind === 'constant') return { kind: 'choice', values: [toValue(node('value') as Node)] };
  if (kind === 'categorical') {
    const values = node('values');
    if (values?.kind === 'list' && values.items.length > 0)
      return { kind: 'choice', values: values.items.map(toValue) };
    throw refuse("values must be a list with something in it, such as '[0.1, 0.01]'");
  }
  const q = keys.includes('q') ? number('q', 1) : null;
  if (q !== null && !(q > 0)) throw refuse('q must be larger than 0');
  const log = kind.includes('log_');
  const [min, max] = [number('min'), number('max')];
  if (min > max) throw refuse(`min, ${min}, is larger than max, ${max}; exchange them`);
  if (kind === 'int_uniform' && !(Number.isInteger(min) && Number.isInteger(max)))
    throw refuse('int_uniform needs whole numbers as min and max');
  if (!Number.isFinite(max - min)) throw refuse(`${min} and ${max} are too far apart`);
  if (log && !(min > 0)) throw refuse(`min must be larger than 0 for the distribution ${kind}`);
  return { kind: 'uniform', min, max, log, rounding: kind === 'int_uniform' ? 'integer' : q };
}

/** The distribution that W&B takes where none is named. */
function inferred(map: MapNode, refuse: (why: string) => Error): string {
  const has = (key: string) => map.entries.has(key);
  if (has('value')) return 'constant';
  if (has('values')) return 'categorical';
  if (!has('min') || !has('max'))
    throw refuse("it has neither 'value', 'values', nor 'min' and 'max'; add one of them");
  if (has('q')) return 'q_uniform';
  const isWhole = RANGE_KEYS.every((key) =>
    /^[-+]?\d+$/.test(formatValue(scalarOf(map.entries.get(key)?.node) ?? '')),
  );
  return isWhole ? 'int_uniform' : 'uniform';
}

/** A task as W&B's agent would start it. */
function ownCommand(
  tree: MapNode,
  parameters: readonly NestedParameter[],
  fail: Fail,
): (values: Values) => TaskCommand {
  const entry = tree.entries.get('command');
  const program = tree.entries.get('program');
  const text = (node: Node | undefined, line: number, what: string): string => {
    const value = scalarOf(node);
    if (value === undefined || value === null || value === '') throw fail(line, `${what} must be a text`);
    return formatValue(value);
  };
  let words = DEFAULT_COMMAND;
  if (entry !== undefined) {
    const { node, line } = entry;
    if (node.kind !== 'list' || node.items.length === 0)
      throw fail(
        line,
        "command: it must be a list of words such as '[${env}, python3, ${program}, ${args}]'",
      );
    words = node.items.map((item) => text(item, item.line, 'command: a word'));
  }
  words = words.map(withVariables);
  const line = entry?.line ?? tree.line;
  const isMacro = (word: string) => /^\$\{.*\}$/s.test(word);
  const unknown = words.find((word) => isMacro(word) && !Object.hasOwn(MACROS, word.slice(2, -1)));
  if (unknown !== undefined) {
    const known = Object.keys(MACROS).map((each) => `\${${each}}`);
    throw fail(
      line,
      `command: there is no macro ${showValue(unknown)}; use one of ${listWords(known, 'or')}`,
    );
  }
  if (program === undefined && words.includes('${program}')) {
    throw fail(
      tree.line,
      "there is no 'program' to run; add one such as 'program: train.py', or put a command at the end, such as -- python train.py --lr {lr}",
    );
  }
  const names = {
    program: program === undefined ? '' : text(program.node, program.line, 'program: it'),
    interpreter: words.includes('${interpreter}') ? interpreter() : '',
  };
  return (values) => {
    const config = nest(parameters, values);
    const made = words.flatMap((word) => {
      if (!isMacro(word)) return [shellWords([word])];
      return (MACROS[word.slice(2, -1)] as Macro)(config, names).map((each) => shellWords([each]));
    });
    return { shell: withFiles(config, made.join(' ')) };
  };
}

/** Values as a configuration with nested maps has them. */
function nest(parameters: readonly NestedParameter[], values: Values): Values {
  const all: Record<string, Value> = {};
  for (const { path, name } of parameters) {
    if (!Object.hasOwn(values, name)) continue;
    let map = all;
    for (const key of path.slice(0, -1)) {
      map[key] ??= {};
      map = map[key] as Record<string, Value>;
    }
    map[path.at(-1) as string] = values[name] as Value;
  }
  return all;
}

type Macro = (config: Values, names: { program: string; interpreter: string }) => string[];

const flags = (config: Values, make: (name: string, text: string, value: Value) => string[]): string[] =>
  Object.entries(config).flatMap(([name, value]) => make(name, pythonText(value), value));

/** As W&B's launch/sweeps/utils.py and wandb_agent.py fill them in. */
const MACROS: Readonly<Record<string, Macro>> = {
  env: () => ['/usr/bin/env'],
  interpreter: (_, names) => [names.interpreter],
  program: (_, names) => [names.program],
  args: (config) => flags(config, (name, text) => [`--${name}=${text}`]),
  args_no_equals: (config) => flags(config, (name, text) => [`--${name}`, text]),
  args_no_hyphens: (config) => flags(config, (name, text) => [`${name}=${text}`]),
  args_no_boolean_flags: (config) =>
    flags(config, (name, text) =>
      text === 'False' ? [] : [text === 'True' ? `--${name}` : `--${name}=${text}`],
    ),
  args_append_hydra: (config) => flags(config, (name, text) => [`+${name}=${text}`]),
  args_override_hydra: (config) => flags(config, (name, text) => [`++${name}=${text}`]),
  args_json: (config) => [stringifyValue(config)],
};

/**
 * Where a program that calls wandb.init() finds its configuration: beside the file with the task. The run has the name of that directory:
 * worker/wandb-run.ts finds by it what the run has logged. wandb writes that every 15 s, unless its setting says otherwise.
 */
const FILES = [
  'FILES=${GPU_OWNER_TASK%/*}; export WANDB_SWEEP_PARAM_PATH="$FILES/wandb.json" WANDB_RUN_ID="${FILES##*/}"',
  'WANDB__TRANSACTION_LOG_FLUSH_INTERVAL="${WANDB__TRANSACTION_LOG_FLUSH_INTERVAL-2}"',
].join(' ');

function withFiles(config: Values, line: string): string {
  const entries = Object.entries(config).map(([key, value]) => [key, { value: forPyYAML(value) }] as const);
  const text = shellWords([stringifyValue(Object.fromEntries(entries))]);
  return `${FILES}; printf %s ${text} >"$FILES/wandb.json"; exec ${line}`;
}

/** `${envvar:NAME}`, also inside of a word; W&B leaves the name of a variable that isn't set. */
function withVariables(word: string): string {
  return word.replace(/\$\{envvar:([A-Z0-9_]*)\}/g, (_, name: string) => process.env[name] ?? name);
}

/** `python`, as in W&B; `python3` where there is no other. */
function interpreter(): string {
  const isThere = (name: string) => commandProblem([name]) === null;
  return !isThere('python') && isThere('python3') ? 'python3' : 'python';
}

/** Numbers with an exponent have a dot and a sign there, or they were texts. */
function forPyYAML(value: Value): Value {
  const data = value instanceof Literal ? value.data : value;
  if (typeof data === 'number') {
    const text = /^(-?\d+)(\.\d+)?e([-+]?)(\d+)$/i.exec(String(data));
    if (text === null) return data;
    const [, whole, fraction = '.0', sign, exponent] = text;
    return new Literal(data, `${whole}${fraction}e${sign || '+'}${exponent}`);
  }
  if (data === null || typeof data !== 'object') return data;
  if (Array.isArray(data)) return data.map(forPyYAML);
  return Object.fromEntries(Object.entries(data as Values).map(([key, each]) => [key, forPyYAML(each)]));
}

const DECIMAL = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

/** A value as Python's str() shows it. */
function pythonText(value: Value): string {
  return typeof value === 'string' ? value : pythonRepr(value);
}

function pythonRepr(value: Value): string {
  if (value instanceof Literal) return DECIMAL.test(value.text) ? value.text : pythonRepr(value.data);
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'number') return String(value);
  if (typeof value === 'string') return quoted(value);
  if (Array.isArray(value)) return `[${value.map(pythonRepr).join(', ')}]`;
  const entries = Object.entries(value as Values);
  return `{${entries.map(([key, each]) => `${quoted(key)}: ${pythonRepr(each)}`).join(', ')}}`;
}

/** In single quotes where there are none in it, as in Python. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text
    .replace(/[\\]/g, '\\\\')
    .replace(/\n/g, '\\n')
    .replace(/\t/g, '\\t')
    .replace(/\r/g, '\\r');
  return `${quote}${quote === "'" ? escaped.replaceAll("'", "\\'") : escaped}${quote}`;
}

function mapOf(node: Node, refuse: () => Error): MapNode {
  if (node.kind !== 'map') throw refuse();
  return node;
}

function shown(node: Node): string {
  return node.kind === 'scalar' ? showValue(formatValue(node.value)) : `a ${node.kind}`;
}
