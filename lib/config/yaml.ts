// The package yaml, loaded where there is something to read, and values in its trees.
import { join } from 'node:path';
import type * as YAML from 'yaml';
import { runBundle } from '../bundle.ts';
import { GPUOwnerError } from '../errors.ts';
import { packageRoot } from '../native.ts';
import { closest, listWords, parseDuration, showValue } from '../platform/index.ts';

let loaded: typeof YAML | undefined;

/** Loaded only where there is a file, and synchronously, as constructors need the result. It is a bundle, as its 70 files take 30 ms. */
export function loadYAML(): typeof YAML {
  loaded ??= runBundle('yaml', join(packageRoot, 'dist'), process.getBuiltinModule) as typeof YAML;
  return loaded;
}

/** The beginning of a node in its file; undefined: it is none. */
export function offsetOf(node: unknown): number | undefined {
  const range = typeof node === 'object' && node !== null && 'range' in node ? node.range : undefined;
  return Array.isArray(range) ? range[0] : undefined;
}

/** A value in a file that has keys and values of its own. */
export interface Place {
  yaml: typeof YAML;
  node: unknown;
  /** The node of its key. */
  at: unknown;
  /** For messages: `limits.users.alice`. */
  name: string;
  refuse: (node: unknown, why: string) => GPUOwnerError;
}

/** The entries of a mapping, each key once. @param example for people who wrote something else @throws ERR_CONFIGURATION */
export function* entriesOf(
  { yaml, node, at, name, refuse }: Place,
  example: string,
): Generator<[key: string, place: Place]> {
  if (!yaml.isMap(node))
    throw refuse(node ?? at, `${name}: it must have keys and values, such as ${example}`);
  const seen = new Set<string>();
  for (const { key: keyNode, value } of node.items) {
    const key = yaml.isScalar(keyNode) ? String(keyNode.value) : '';
    if (seen.has(key)) throw refuse(keyNode, `${name}.${key} is given twice; remove one`);
    seen.add(key);
    yield [key, { yaml, node: value, at: keyNode, name: `${name}.${key}`, refuse }];
  }
}

/** Makes the parser of a mapping. @param parts what each key sets @throws ERR_CONFIGURATION */
export function mapping<Rules extends object>(
  example: string,
  defaults: Rules,
  parts: Readonly<Record<string, (place: Place) => Partial<Rules>>>,
): (place: Place) => Rules {
  const known = Object.keys(parts);
  return (place) => {
    let rules = defaults;
    for (const [key, inner] of entriesOf(place, example)) {
      const part = Object.hasOwn(parts, key) ? parts[key]?.(inner) : undefined;
      if (part === undefined) {
        const meant = closest(key, known);
        const remedy = meant === null ? `the known ones are ${listWords(known)}` : `did you mean '${meant}'?`;
        throw place.refuse(inner.at, `${place.name}: there is no key ${showValue(key)}; ${remedy}`);
      }
      rules = { ...rules, ...part };
    }
    return rules;
  };
}

/** A single value. @param parse throws ERR_INVALID_ARGUMENT @throws ERR_CONFIGURATION */
export function single<T>(
  { yaml, node, at, name, refuse }: Place,
  parse: (value: unknown, name: string) => T,
): T {
  if (!yaml.isScalar(node) || node.value === null) {
    const isEmpty = node === null || yaml.isScalar(node);
    throw refuse(node ?? at, `${name}: ${isEmpty ? 'it has no value' : 'it must be a single value'}`);
  }
  try {
    return parse(node.value, name);
  } catch (error) {
    if (error instanceof GPUOwnerError) throw refuse(node ?? at, error.message);
    throw error;
  }
}

/** A list of users, groups or programs. @throws ERR_CONFIGURATION */
export function namesIn({ yaml, node, at, name, refuse }: Place, example: string): string[] {
  const names: readonly unknown[] = yaml.isSeq(node) ? node.items : [null];
  return names.map((each) => {
    const text = yaml.isScalar(each) ? String(each.value ?? '') : '';
    if (text !== '') return text;
    throw refuse(node ?? at, `${name}: it must be a list of names, such as ${example}`);
  });
}

/** Parses a time of a file. Only programs count milliseconds: a number has lost its unit. */
export function parseTime(value: unknown, name: string): number {
  return parseDuration(typeof value === 'number' ? String(value) : value, name);
}
