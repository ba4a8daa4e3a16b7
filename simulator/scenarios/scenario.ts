import { loadYAML, offsetOf, problem } from '../../lib/config/index.ts';
import { GPUOwnerError } from '../../lib/errors.ts';
import {
  closest,
  formatBytes,
  invalidValue,
  listWords,
  parseDuration,
  parseSize,
  sanitize,
  showValue,
} from '../../lib/platform/index.ts';
import type { ShownMachine } from './simulator.ts';

/** Something that happens at one time. Processes go by the names that the scenario gives them. */
export type Action =
  | { kind: 'occupy'; process: string; gpus: readonly string[]; args: readonly string[]; about: string }
  | { kind: 'memory'; process: string; bytes: number }
  | { kind: 'end'; process: string }
  | { kind: 'set'; words: readonly string[]; about: string };

export interface Step {
  /** In ms since the beginning. */
  at: number;
  line: number;
  action: Action;
}

interface Scenario {
  /** As the file names it; null: it doesn't. */
  machine: string | null;
  speed: number | null;
  /** In the order in which they happen. */
  steps: readonly Step[];
}

/** The errors that `driver:` sets. Programs that have NVML open keep their handles; all their calls fail, as do CUDA's. */
const DRIVER_STATES: Readonly<Record<string, readonly [calls: string, about: string]>> = {
  // NVML_ERROR_DRIVER_NOT_LOADED, CUDA_ERROR_NO_DEVICE
  off: ['all:9,cuda-init:100,cuda-context:100,cuda-alloc:100,cuda-free:100', 'the driver is unloaded'],
  // The package is updated, the kernel module not: NVML_ERROR_LIB_RM_VERSION_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
  mismatch: ['all:0,init:18,cuda-init:803', "the driver's libraries are replaced, its kernel module is not"],
  on: ['all:0', 'the driver is loaded'],
};

const TYPES = ['compute', 'graphics', 'compute+graphics', 'mps-server'];
const KEYS = {
  scenario: ['machine', 'speed', 'steps'],
  step: ['at', 'occupy', 'memory', 'end', 'set', 'driver'],
  occupy: ['gpu', 'memory', 'name', 'as', 'for', 'type', 'utilization'],
  memory: ['process', 'to'],
} as const;

interface Entry {
  line: number;
  node: unknown;
}

type Entries = ReadonlyMap<string, Entry>;

/** Reads a scenario and checks all that can be checked without its machine. @throws ERR_CONFIGURATION, with the line */
export function parseScenario(text: string, path: string): Scenario {
  return new Reader(text, path).read();
}

class Reader {
  readonly #path: string;
  readonly #text: string;
  readonly #yaml = loadYAML();
  readonly #lines = new this.#yaml.LineCounter();

  constructor(text: string, path: string) {
    this.#text = text;
    this.#path = path;
  }

  read(): Scenario {
    const document = this.#yaml.parseDocument(this.#text, {
      lineCounter: this.#lines,
      prettyErrors: false,
      logLevel: 'error',
    });
    const mistake = document.errors[0] ?? document.warnings[0];
    if (mistake) {
      const { line } = this.#lines.linePos(mistake.pos[0]);
      throw this.#problem(line, `not valid YAML: ${sanitize(mistake.message)}`);
    }
    const entries = this.#map({ line: 1, node: document.contents }, 'a scenario', KEYS.scenario);
    const [machine, speed, steps] = KEYS.scenario.map((key) => entries.get(key));
    if (steps === undefined || !this.#yaml.isSeq(steps.node) || steps.node.items.length === 0) {
      throw this.#problem(
        steps?.line ?? 1,
        'it has no steps; add `steps:` and a list of them, as in `- at: 0s`',
      );
    }
    const all = steps.node.items.flatMap((node) => this.#step(this.#entry(node, steps.line)));
    return {
      machine: machine === undefined ? null : this.#word(machine, 'machine'),
      speed:
        speed === undefined
          ? null
          : this.#checked(speed, () => parseSpeed(this.#scalar(speed, 'speed'), 'speed')),
      steps: this.#inOrder(all),
    };
  }

  /** One step, and the end of its process after `for`. */
  #step(entry: Entry): Step[] {
    const entries = this.#map(entry, 'a step', KEYS.step);
    const { line } = entry;
    const at = entries.get('at');
    if (at === undefined) throw this.#problem(line, 'a step without a time; add `at: 5s`');
    const time = this.#duration(at, 'at');
    const actions = [...entries].filter(([key]) => key !== 'at');
    const [name, value] = actions[0] ?? [];
    if (name === undefined || value === undefined || actions.length > 1) {
      const choice = listWords(KEYS.step.slice(1), 'or');
      throw this.#problem(line, `a step has one action, ${choice}; this one has ${actions.length}`);
    }
    if (name === 'occupy') return this.#occupy(time, value);
    return [{ at: time, line, action: this.#action(name, value) }];
  }

  #action(name: string, value: Entry): Action {
    if (name === 'end') return { kind: 'end', process: this.#word(value, name) };
    if (name === 'memory') {
      const entries = this.#map(value, name, KEYS.memory);
      const process = this.#required(entries, 'process', value.line, name);
      const to = this.#required(entries, 'to', value.line, name);
      const bytes = this.#checked(to, () => parseSize(this.#scalar(to, 'to'), 'to'));
      return { kind: 'memory', process: this.#word(process, 'process'), bytes };
    }
    if (name === 'set') {
      const words = this.#words(value, 'set').flatMap((each) => each.split(/\s+/).filter(Boolean));
      return { kind: 'set', words, about: words.join(' ') };
    }
    const state = this.#word(value, 'driver');
    const found = Object.hasOwn(DRIVER_STATES, state) ? DRIVER_STATES[state] : undefined;
    if (found === undefined) {
      throw this.#problem(
        value.line,
        `driver: ${showValue(state)} is not a state; use ${listWords(Object.keys(DRIVER_STATES), 'or')}`,
      );
    }
    return { kind: 'set', words: [`error=${found[0]}`], about: `driver ${state}: ${found[1]}` };
  }

  #occupy(at: number, value: Entry): Step[] {
    const { line } = value;
    const entries = this.#map(value, 'occupy', KEYS.occupy);
    const text = (key: (typeof KEYS.occupy)[number]) => {
      const entry = entries.get(key);
      return entry === undefined ? undefined : this.#word(entry, key);
    };
    const gpus = this.#words(this.#required(entries, 'gpu', line, 'occupy'), 'gpu');
    const name = text('name') ?? 'python';
    const process = text('as') ?? name;
    const memory = entries.get('memory');
    const bytes = memory && this.#checked(memory, () => parseSize(this.#scalar(memory, 'memory'), 'memory'));
    const type = text('type');
    if (type !== undefined && !TYPES.includes(type)) {
      throw this.#problem(line, `type: ${showValue(type)} is not a type; use ${listWords(TYPES, 'or')}`);
    }
    const utilization = text('utilization')?.replace(/\s*%$/, '');
    if (utilization !== undefined && !(/^\d{1,3}$/.test(utilization) && Number(utilization) <= 100)) {
      throw this.#problem(
        line,
        `utilization: ${showValue(utilization)} is not a percentage; use a number from 0 to 100`,
      );
    }
    const args = [
      `--name=${name}`,
      ...(bytes === undefined ? [] : [`--memory=${bytes}`]),
      ...(type === undefined ? [] : [`--type=${type}`]),
      ...(utilization === undefined ? [] : [`--utilization=${utilization}`]),
    ];
    const size = bytes === undefined ? '' : `, with ${formatBytes(bytes)}`;
    const about = `${process} on GPU ${listWords(gpus)}${size}`;
    const start: Step = { at, line, action: { kind: 'occupy', process, gpus, args, about } };
    const duration = entries.get('for');
    if (duration === undefined) return [start];
    const length = this.#duration(duration, 'for');
    if (length === 0)
      throw this.#problem(duration.line, 'for: a process runs for some time; use 30s or leave it out');
    return [start, { at: at + length, line: duration.line, action: { kind: 'end', process } }];
  }

  /** By time. Processes that end make room for those that begin at the same time. @throws if a process isn't there */
  #inOrder(all: readonly Step[]): Step[] {
    const isEnd = ({ action }: Step) => Number(action.kind === 'end');
    const steps = [...all].sort((a, b) => a.at - b.at || isEnd(b) - isEnd(a));
    const running = new Set<string>();
    for (const { at, line, action } of steps) {
      if (action.kind === 'set') continue;
      const { kind, process } = action;
      if (kind === 'occupy' && running.has(process)) {
        throw this.#problem(
          line,
          `${showValue(process)} runs already at ${at / 1000} s; give one of them another name with \`as\``,
        );
      }
      if (kind !== 'occupy' && !running.has(process)) {
        const known =
          running.size === 0 ? 'none runs' : `there run ${listWords([...running].map(showValue))}`;
        throw this.#problem(
          line,
          `${kind}: no process ${showValue(process)} runs at ${at / 1000} s; ${known} then`,
        );
      }
      if (kind === 'occupy') running.add(process);
      if (kind === 'end') running.delete(process);
    }
    return steps;
  }

  /** A map's entries, with their lines. */
  #map({ line, node }: Entry, what: string, keys: readonly string[]): Entries {
    if (!this.#yaml.isMap(node)) throw this.#problem(line, `${what} is a map with ${listWords(keys)}`);
    const entries = new Map<string, Entry>();
    for (const { key, value } of node.items) {
      const at = this.#entry(key, line);
      const name = this.#yaml.isScalar(key) ? String(key.value) : '';
      if (!keys.includes(name)) {
        const meant = closest(name, keys);
        const remedy = meant ? `did you mean ${meant}?` : `there are ${listWords(keys)}`;
        throw this.#problem(at.line, `${what} has no ${showValue(name)}; ${remedy}`);
      }
      entries.set(name, this.#entry(value, at.line));
    }
    return entries;
  }

  #required(entries: Entries, key: string, line: number, what: string): Entry {
    const entry = entries.get(key);
    if (entry === undefined) throw this.#problem(line, `${what} has no ${key}; add it`);
    return entry;
  }

  #entry(node: unknown, near: number): Entry {
    const start = offsetOf(node);
    return { line: start === undefined ? near : this.#lines.linePos(start).line, node };
  }

  #scalar({ line, node }: Entry, key: string): unknown {
    const value = this.#yaml.isScalar(node) ? node.value : null;
    if (value === null || value === '') throw this.#problem(line, `${key}: give a single value`);
    return value;
  }

  /** A scalar as it is written: 0:2 and 1e3 are names of something, not numbers. */
  #word(entry: Entry, key: string): string {
    const value = this.#scalar(entry, key);
    const source = this.#yaml.isScalar(entry.node) ? entry.node.source : undefined;
    const word = typeof value === 'string' ? value : (source ?? String(value));
    if (/[^ -~]/.test(word)) throw this.#problem(entry.line, `${key}: write it in ASCII`);
    return word;
  }

  #words(entry: Entry, key: string): string[] {
    if (!this.#yaml.isSeq(entry.node)) return [this.#word(entry, key)];
    return entry.node.items.map((item) => this.#word(this.#entry(item, entry.line), key));
  }

  /** Always with a unit. */
  #duration(entry: Entry, key: string): number {
    return this.#checked(entry, () => parseDuration(this.#word(entry, key), key));
  }

  /** Adds file and line to errors of a check. */
  #checked<T>({ line }: Entry, check: () => T): T {
    return withLine(this.#path, line, check);
  }

  #problem(line: number, why: string): GPUOwnerError {
    return problem(this.#path, line, why);
  }
}

function withLine<T>(path: string, line: number, check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof GPUOwnerError) || error.code === 'ERR_CONFIGURATION') throw error;
    throw problem(path, line, error.message, error);
  }
}

/** @throws ERR_INVALID_ARGUMENT */
export function parseSpeed(value: unknown, option: string): number {
  const speed = Number(value);
  if (speed > 0 && speed <= 1_000_000) return speed;
  throw invalidValue(option, value, 'a speed', 'use 1, 0.5 or 10');
}

/**
 * Checks what depends on the machine.
 *
 * @param checkSet throws if `simulate set` doesn't take the words
 * @throws ERR_CONFIGURATION, with the line
 */
export function checkScenario(
  { steps }: Scenario,
  path: string,
  { machine, gpus }: ShownMachine,
  checkSet: (words: readonly string[]) => void,
): void {
  const largest = Math.max(...gpus.map(({ memory }) => memory.totalBytes));
  for (const { line, action } of steps) {
    if (action.kind === 'set') withLine(path, line, () => checkSet(action.words));
    if (action.kind === 'memory' && action.bytes > largest) {
      throw problem(path, line, `to: no GPU of ${machine} has so much memory; use less`);
    }
    if (action.kind !== 'occupy') continue;
    for (const gpu of action.gpus) {
      const index = /^(\d{1,2})(?::[0-6])?$/.exec(gpu)?.[1];
      const isThere =
        index === undefined
          ? gpus.some((each) => [each, ...each.migInstances].some(({ uuid }) => uuid === gpu))
          : Number(index) < gpus.length;
      if (isThere) continue;
      const known = `an index from 0 to ${gpus.length - 1}, 0:2 for a MIG instance, or a UUID`;
      throw problem(path, line, `gpu: ${showValue(gpu)} is not a GPU of machine ${machine}; use ${known}`);
    }
  }
}
