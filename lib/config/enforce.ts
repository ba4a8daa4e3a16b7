import type * as YAML from 'yaml';
import { GPUOwnerError } from '../errors.ts';
import { oneOf, parseDuration } from '../platform/index.ts';
import { parseBoolean } from './criteria.ts';
import { pairsOf, type Refuse, unknownKey } from './limits.ts';
import { parseNames } from './urgent.ts';

/** The key `enforce` of a machine's file: what `gpu-owner enforce` does. */
export interface EnforceRules {
  /** required: programs may compute on no GPU without a claim; optional: they may on those that aren't leased. */
  claims: (typeof CLAIMS)[number];
  /** Between the warning and SIGTERM. */
  graceMs: number;
  /** Whether it is for processes of containers, too, whose user can't be told. */
  containers: boolean;
  /** Exceptions: names, or numbers as text; programs also by their paths. */
  except: Readonly<Record<(typeof EXCEPTIONS)[number], readonly string[]>>;
}

const CLAIMS = ['optional', 'required'] as const;
const KEYS = ['claims', 'grace', 'containers', 'except'] as const;
const EXCEPTIONS = ['users', 'groups', 'programs'] as const;
const EXAMPLE = '{ claims: required, grace: 5m }';
const EXAMPLE_OF_EXCEPTIONS = '{ users: [alice], programs: [Xorg] }';

export const DEFAULT_ENFORCE_RULES: EnforceRules = {
  claims: 'optional',
  graceMs: 300_000,
  containers: false,
  except: { users: [], groups: [], programs: [] },
};

/** @throws ERR_CONFIGURATION */
export function parseEnforce(yaml: typeof YAML, node: unknown, refuse: Refuse): EnforceRules {
  const rules = { ...DEFAULT_ENFORCE_RULES };
  for (const { key, at, value } of pairsOf(yaml, node, 'enforce', EXAMPLE, refuse)) {
    if (key === 'except') {
      rules.except = parseExceptions(yaml, value, at, refuse);
      continue;
    }
    const given: unknown = yaml.isScalar(value) ? value.value : undefined;
    const name = `enforce.${key}`;
    try {
      if (key === 'claims') rules.claims = oneOf(given, CLAIMS, name);
      else if (key === 'containers') rules.containers = parseBoolean(given, name);
      else if (key === 'grace')
        rules.graceMs = parseDuration(typeof given === 'number' ? String(given) : given, name);
      else throw unknownKey(key, 'enforce', KEYS, at, refuse);
    } catch (error) {
      if (!(error instanceof GPUOwnerError) || error.code === 'ERR_CONFIGURATION') throw error;
      throw refuse(value ?? at, error.message);
    }
  }
  return rules;
}

function parseExceptions(
  yaml: typeof YAML,
  node: unknown,
  parent: unknown,
  refuse: Refuse,
): EnforceRules['except'] {
  const except = { ...DEFAULT_ENFORCE_RULES.except };
  for (const { key, at, value } of pairsOf(
    yaml,
    node,
    'enforce.except',
    EXAMPLE_OF_EXCEPTIONS,
    refuse,
    parent,
  )) {
    const known = EXCEPTIONS.find((name) => name === key);
    if (known === undefined) throw unknownKey(key, 'enforce.except', EXCEPTIONS, at, refuse);
    except[known] = parseNames(yaml, value, at, `enforce.except.${key}`, EXAMPLE_OF_EXCEPTIONS, refuse);
  }
  return except;
}
