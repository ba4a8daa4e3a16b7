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
    const names = yaml.isSeq(value) ? value.items : [null];
    named[key] = names.map((name) => {
      const text = yaml.isScalar(name) ? String(name.value ?? '') : '';
      if (text !== '') return text;
      throw refuse(value ?? at, `urgent.${key}: it must be a list of names, such as ${example}`);
    });
  }
  return named;
}
