import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import { closest, invalidValue, listWords, parseDuration, showValue } from '../platform/index.ts';

/** Limits of one user. A limit that isn't set is missing; Infinity: none. */
export interface Limit {
  /** How many GPUs at a time. */
  gpus?: number;
  /** How long a command may run, in ms; also where its user sets no limit. */
  ms?: number;
}

/** The key `limits` of a machine's file. */
export interface Limits {
  everybody: Limit;
  /** By name, or by number as text. */
  users: ReadonlyMap<string, Limit>;
  groups: ReadonlyMap<string, Limit>;
}

export type Refuse = (node: unknown, why: string) => GPUOwnerError;

const LIMIT_KEYS = ['gpus', 'for'];
const EXAMPLE = '{ gpus: 4, for: 24h }';

/** @param isMachine whether the file is the machine's: only that has limits of users and groups @throws ERR_CONFIGURATION */
export function parseLimits(yaml: typeof YAML, node: unknown, isMachine: boolean, refuse: Refuse): Limits {
  const named = { users: new Map<string, Limit>(), groups: new Map<string, Limit>() };
  const everybody: Limit = {};
  const known = isMachine ? [...LIMIT_KEYS, 'users', 'groups'] : LIMIT_KEYS;
  for (const { key, at, value } of pairsOf(yaml, node, 'limits', EXAMPLE, refuse)) {
    if (!known.includes(key)) throw unknownKey(key, 'limits', known, at, refuse);
    if (key !== 'users' && key !== 'groups')
      setLimit(yaml, everybody, key, value, at, `limits.${key}`, refuse);
    else
      for (const each of pairsOf(yaml, value, `limits.${key}`, EXAMPLE, refuse, at)) {
        const name = `limits.${key}.${each.key}`;
        const limit: Limit = {};
        for (const inner of pairsOf(yaml, each.value, name, EXAMPLE, refuse, each.at)) {
          if (!LIMIT_KEYS.includes(inner.key))
            throw unknownKey(inner.key, name, LIMIT_KEYS, inner.at, refuse);
          setLimit(yaml, limit, inner.key, inner.value, inner.at, `${name}.${inner.key}`, refuse);
        }
        named[key].set(each.key, limit);
      }
  }
  return { everybody, ...named };
}

/** The entries of a mapping, each key once. @param example for people who wrote something else */
export function* pairsOf(
  yaml: typeof YAML,
  node: unknown,
  name: string,
  example: string,
  refuse: Refuse,
  parent: unknown = node,
) {
  if (yaml.isAlias(node))
    throw refuse(node, `${name}: YAML aliases (*name) are not supported here; write the value itself`);
  if (!yaml.isMap(node))
    throw refuse(node ?? parent, `${name}: it must have keys and values, such as ${example}`);
  const seen = new Set<string>();
  for (const { key: at, value } of node.items) {
    const key = yaml.isScalar(at) ? String(at.value) : '';
    if (seen.has(key)) throw refuse(at, `${name}.${key} is given twice; remove one`);
    seen.add(key);
    yield { key, at, value };
  }
}

export function unknownKey(
  key: string,
  name: string,
  known: readonly string[],
  at: unknown,
  refuse: Refuse,
): GPUOwnerError {
  const meant = closest(key, known);
  const remedy = meant === null ? `the known ones are ${listWords(known)}` : `did you mean '${meant}'?`;
  return refuse(at, `${name}: there is no key ${showValue(key)}; ${remedy}`);
}

function setLimit(
  yaml: typeof YAML,
  limit: Limit,
  key: string,
  node: unknown,
  at: unknown,
  name: string,
  refuse: Refuse,
): void {
  const value: unknown = yaml.isScalar(node) ? node.value : undefined;
  try {
    if (key === 'gpus') limit.gpus = parseGPUs(value, name);
    else limit.ms = unlimited(parseDuration(typeof value === 'number' ? String(value) : value, name));
  } catch (error) {
    if (error instanceof GPUOwnerError) throw refuse(node ?? at, error.message);
    throw error;
  }
}

/** 0 stands for no limit. */
function unlimited(number: number): number {
  return number === 0 ? Number.POSITIVE_INFINITY : number;
}

function parseGPUs(value: unknown, name: string): number {
  if (typeof value === 'number' && value >= 0 && value <= 1024) return unlimited(value);
  throw invalidValue(name, value, 'a number of GPUs', 'use 1, 2, …, or 0 for no limit');
}
