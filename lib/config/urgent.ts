import type * as YAML from 'yaml';
import { pairsOf, type Refuse, unknownKey } from './limits.ts';

/** The key `urgent` of a machine's file: users and groups whose requests may be urgent, by name, or by number as text. */
export interface UrgentUsers {
  users: readonly string[];
  groups: readonly string[];
}

const KEYS = ['users', 'groups'] as const;

/** @throws ERR_CONFIGURATION */
export function parseUrgent(yaml: typeof YAML, node: unknown, refuse: Refuse): UrgentUsers {
  const named: Record<(typeof KEYS)[number], string[]> = { users: [], groups: [] };
  const example = '{ users: [alice], groups: [staff] }';
  for (const { key, at, value } of pairsOf(yaml, node, 'urgent', example, refuse)) {
    if (key !== 'users' && key !== 'groups') throw unknownKey(key, 'urgent', KEYS, at, refuse);
    named[key] = parseNames(yaml, value, at, `urgent.${key}`, example, refuse);
  }
  return named;
}

/** A list of users or groups. @param at the node of its key @throws ERR_CONFIGURATION */
export function parseNames(
  yaml: typeof YAML,
  node: unknown,
  at: unknown,
  name: string,
  example: string,
  refuse: Refuse,
): string[] {
  const names: readonly unknown[] = yaml.isSeq(node) ? node.items : [null];
  return names.map((each) => {
    const text = yaml.isScalar(each) ? String(each.value ?? '') : '';
    if (text !== '') return text;
    throw refuse(node ?? at, `${name}: it must be a list of names, such as ${example}`);
  });
}
