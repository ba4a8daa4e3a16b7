import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import { invalidValue, parseDuration, parsePercent } from '../platform/index.ts';
import { pairsOf, type Refuse, unknownKey } from './limits.ts';
import { parseNames } from './urgent.ts';

/** The key `idle` of a machine's file: what becomes of jobs whose GPUs do nothing. */
export interface IdleRules {
  /** When their user is warned, in ms. */
  afterMs: number;
  /** How much later the job is ended, in ms; null: never. */
  endMs: number | null;
  /** Whether the warning is told by notifyCommand and notifyWebhook, too. */
  notify: boolean;
  /** Users whose jobs are left alone, by name, or by number as text. */
  users: readonly string[];
  /** Below so many percent, utilization is none. */
  minUtilization: number;
}

const KEYS = ['after', 'notify', 'end', 'except'] as const;
const EXCEPT_KEYS = ['users', 'minUtilization'] as const;
const EXAMPLE = '{ after: 1h, notify: true, end: 30m-later, except: { users: [alice] } }';

/** @throws ERR_CONFIGURATION */
export function parseIdleRules(yaml: typeof YAML, node: unknown, refuse: Refuse): IdleRules {
  const rules: IdleRules = { afterMs: 0, endMs: null, notify: false, users: [], minUtilization: 1 };
  const check = <T>(at: unknown, value: unknown, parse: (plain: unknown) => T): T => {
    try {
      return parse(yaml.isScalar(value) ? value.value : undefined);
    } catch (error) {
      if (error instanceof GPUOwnerError) throw refuse(value ?? at, error.message);
      throw error;
    }
  };
  for (const { key, at, value } of pairsOf(yaml, node, 'idle', EXAMPLE, refuse)) {
    const name = `idle.${key}`;
    if (key === 'after') rules.afterMs = check(at, value, (plain) => parseTime(plain, name));
    else if (key === 'end') rules.endMs = check(at, value, (plain) => parseEnd(plain, name));
    else if (key === 'notify') rules.notify = check(at, value, (plain) => parseFlag(plain, name));
    else if (key !== 'except') throw unknownKey(key, 'idle', KEYS, at, refuse);
    else
      for (const inner of pairsOf(yaml, value, name, '{ users: [alice] }', refuse, at)) {
        const innerName = `${name}.${inner.key}`;
        if (inner.key === 'users')
          rules.users = parseNames(yaml, inner.value, inner.at, innerName, EXAMPLE, refuse);
        else if (inner.key === 'minUtilization')
          rules.minUtilization = check(inner.at, inner.value, (plain) => parseLeast(plain, innerName));
        else throw unknownKey(inner.key, name, EXCEPT_KEYS, inner.at, refuse);
      }
  }
  if (rules.afterMs > 0) return rules;
  throw refuse(node, `idle: it needs after, the time in which GPUs did nothing, such as ${EXAMPLE}`);
}

function parseTime(value: unknown, name: string): number {
  const ms = parseDuration(typeof value === 'number' ? String(value) : value, name);
  if (ms > 0) return ms;
  throw invalidValue(name, value, 'a time', 'use 30m, 1h, …');
}

function parseEnd(value: unknown, name: string): number | null {
  if (value === 'never') return null;
  const [, time = ''] = /^(.*)-later$/.exec(String(value)) ?? [];
  if (time !== '') return parseDuration(time, name);
  throw invalidValue(name, value, 'a time after the warning', "use '30m-later' or 'never'");
}

function parseFlag(value: unknown, name: string): boolean {
  if (typeof value === 'boolean') return value;
  throw invalidValue(name, value, 'true or false', 'use true or false');
}

function parseLeast(value: unknown, name: string): number {
  const percent = Math.ceil(parsePercent(value, name));
  if (percent >= 1) return percent;
  throw invalidValue(name, value, 'a percentage from 1 to 100', 'use 5');
}
