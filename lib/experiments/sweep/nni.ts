// Search spaces of NNI: https://nni.readthedocs.io/en/stable/hpo/search_space.html

import { closest, listWords, shellWords, showValue } from '../../platform/index.ts';
import { canonical, stringifyValue, type Value, type Values } from '../task/index.ts';
import { type CommandTemplate, mistake } from './command.ts';
import { phaseOfFile } from './commands-phase.ts';
import { checkParameterName, defaultOutputOf } from './phase.ts';
import {
  type Distribution,
  GRID,
  nest,
  type SearchParameter,
  type SpaceSweep,
  spaceCommand,
} from './search-space.ts';
import { type MapNode, type Node, numberOf, scalarOf, toValue } from './yaml-tree.ts';

type Fail = (line: number, text: string) => Error;

/** The numbers in `_value` of each type. */
const TYPES: Readonly<Record<string, readonly string[]>> = {
  choice: [],
  randint: ['lower', 'upper'],
  uniform: ['low', 'high'],
  quniform: ['low', 'high', 'q'],
  loguniform: ['low', 'high'],
  qloguniform: ['low', 'high', 'q'],
  normal: ['mu', 'sigma'],
  qnormal: ['mu', 'sigma', 'q'],
  lognormal: ['mu', 'sigma'],
  qlognormal: ['mu', 'sigma', 'q'],
};

function isParameter(node: Node): node is MapNode {
  return node.kind === 'map' && node.entries.has('_type');
}

/** Whether a file is a `search_space.json`. */
export function isNNI(tree: MapNode): boolean {
  return tree.entries.size > 0 && Array.from(tree.entries.values()).some(({ node }) => isParameter(node));
}

/**
 * @param command the command line behind `--`: the file has none
 * @throws ERR_CONFIGURATION, with file and line
 */
export function parseNNI(tree: MapNode, path: string, command: CommandTemplate | null): SpaceSweep {
  const fail: Fail = (line, text) => mistake({ file: path, line }, text);
  const space: Space = { parameters: [], named: new Set(), fail };
  addParameters(tree, { path: [], names: [] }, null, space);
  const { parameters } = space;
  const name = phaseOfFile(path);
  const location = { file: path, line: tree.line };
  if (command === null) {
    throw fail(
      tree.line,
      `a search space of NNI has no command; put it at the end, such as -- python train.py --lr {${parameters[0]?.name ?? 'lr'}}`,
    );
  }
  return {
    ...GRID,
    name,
    location,
    parameters,
    outputDirectory: defaultOutputOf(name),
    command: asTrial(spaceCommand(command, parameters, name), space),
  };
}

/** A space that is read. */
interface Space {
  parameters: SearchParameter[];
  /** Choices that are maps with a `_name`: see {@link keyOf}. */
  named: Set<string>;
  fail: Fail;
}

const keyOf = (parameter: string, choice: Value) => JSON.stringify([parameter, canonical(choice)]);

/**
 * The variables of NNI's local training service: its SDK reads the parameters from a file, appends reports to another, which
 * worker/nni-run.ts reads, and makes a log of the output.
 */
const TRIAL =
  'FILES=${GPU_OWNER_TASK%/*}; export NNI_PLATFORM=local NNI_EXP_ID=gpu-owner NNI_TRIAL_JOB_ID="${FILES##*/}" NNI_TRIAL_SEQ_ID=0 NNI_SYS_DIR="$FILES/nni" NNI_OUTPUT_DIR="$FILES/nni"; ' +
  'mkdir -p "$NNI_SYS_DIR/.nni"; ln -sf /dev/stdout "$NNI_SYS_DIR/trial.log"';

/** The command with its parameters where `nni.get_next_parameter()` reads them. */
function asTrial(command: SpaceSweep['command'], { parameters, named }: Space): SpaceSweep['command'] {
  return (values) => {
    const filled = command(values);
    const line = 'shell' in filled ? filled.shell : `exec ${shellWords(filled.words)}`;
    const record = {
      parameter_id: 0,
      parameter_source: 'algorithm',
      parameters: nest(pathsFor(values), values),
    };
    const text = shellWords([stringifyValue(record)]);
    return { shell: `${TRIAL}; printf %s ${text} >"$NNI_SYS_DIR/parameter.cfg"; ${line}` };
  };

  function pathsFor(values: Values): Pick<SearchParameter, 'path' | 'name'>[] {
    return parameters.map(({ path, name }) => {
      const isNamed = Object.hasOwn(values, name) && named.has(keyOf(name, values[name] as Value));
      return { name, path: isNamed ? [...path, '_name'] : path };
    });
  }
}

/** @param above the keys that lead to the map, and the same with what was chosen at each */
function addParameters(
  map: MapNode,
  above: { readonly path: readonly string[]; readonly names: readonly string[] },
  condition: SearchParameter['condition'],
  space: Space,
): void {
  const { parameters, named, fail } = space;
  for (const [key, { node, line }] of map.entries) {
    if (key === '_name') continue;
    const path = [...above.path, key];
    const names = [...above.names, key];
    const name = names.join('.');
    const refuse = (why: string) => fail(line, `parameter ${showValue(name)}: ${why}`);
    checkParameterName(name, refuse);
    if (!isParameter(node))
      throw refuse(`it must be a map such as {"_type": "choice", "_value": [0.1, 0.01]}`);
    const type = scalarOf(node.entries.get('_type')?.node);
    const list = node.entries.get('_value')?.node;
    const kinds = typeof type === 'string' && Object.hasOwn(TYPES, type) ? TYPES[type] : undefined;
    if (kinds === undefined) {
      const meant = typeof type === 'string' ? closest(type, Object.keys(TYPES)) : null;
      throw refuse(
        `its _type isn't supported; ${meant ? `did you mean '${meant}'?` : `use one of ${listWords(Object.keys(TYPES), 'or')}`}`,
      );
    }
    if (list?.kind !== 'list' || list.items.length === 0)
      throw refuse('_value must be a list with something in it');
    if (type === 'choice') {
      const values = list.items.map(choiceName);
      parameters.push({ path, name, condition, distribution: { kind: 'choice', values, weights: null } });
      for (const [choice, item] of list.items.entries()) {
        if (nameOf(item) === null) continue;
        named.add(keyOf(name, values[choice] as Value));
        addParameters(
          item as MapNode,
          { path, names: [...names, String(values[choice])] },
          { name, choice },
          space,
        );
      }
      continue;
    }
    if (list.items.length !== kinds.length) throw refuse(`_value of ${type} must be [${kinds.join(', ')}]`);
    const numbers = list.items.map((item) => numberOf(item, () => refuse('_value must be numbers')));
    parameters.push({ path, name, condition, distribution: distributionOf(type as string, numbers, refuse) });
  }
}

/** The `_name` of a choice that has parameters of its own; null: it is a value. */
function nameOf(item: Node): Value | null {
  return item.kind === 'map' ? (scalarOf(item.entries.get('_name')?.node) ?? null) : null;
}

function choiceName(item: Node): Value {
  return nameOf(item) ?? toValue(item);
}

function distributionOf(
  type: string,
  [first = 0, second = 0, q]: readonly number[],
  refuse: (why: string) => Error,
): Distribution {
  if (q !== undefined && !(q > 0)) throw refuse('q must be larger than 0');
  const rounding = q ?? null;
  const log = type.includes('log');
  if (type.endsWith('normal')) {
    if (second < 0) throw refuse('sigma must not be negative');
    return { kind: 'normal', mean: first, deviation: second, log, rounding };
  }
  if (type === 'randint' && !(Number.isInteger(first) && Number.isInteger(second)))
    throw refuse('lower and upper of randint must be whole numbers');
  // NNI's whole numbers leave out the upper one.
  const max = type === 'randint' ? second - 1 : second;
  if (first > max)
    throw refuse(`${first} must be ${type === 'randint' ? 'smaller than' : 'at most'} ${second}`);
  if (log && !(first > 0)) throw refuse(`low must be larger than 0 for ${type}`);
  return { kind: 'uniform', min: first, max, log, rounding: type === 'randint' ? 'integer' : rounding };
}
