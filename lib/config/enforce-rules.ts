import { oneOf } from '../platform/index.ts';
import { parseBoolean } from './criteria.ts';
import { mapping, namesIn, type Place, parseTime, single } from './yaml.ts';

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
const EXCEPTIONS = ['users', 'groups', 'programs'] as const;
const EXAMPLE = '{ claims: required, grace: 5m }';
const EXAMPLE_OF_EXCEPTIONS = '{ users: [alice], programs: [Xorg] }';

export const DEFAULT_ENFORCE_RULES: EnforceRules = {
  claims: 'optional',
  graceMs: 300_000,
  containers: false,
  except: { users: [], groups: [], programs: [] },
};

const names = (key: (typeof EXCEPTIONS)[number]) => (place: Place) => ({
  [key]: namesIn(place, EXAMPLE_OF_EXCEPTIONS),
});

const parseExceptions = mapping(EXAMPLE_OF_EXCEPTIONS, DEFAULT_ENFORCE_RULES.except, {
  users: names('users'),
  groups: names('groups'),
  programs: names('programs'),
});

/** @throws ERR_CONFIGURATION */
export const parseEnforce = mapping(EXAMPLE, DEFAULT_ENFORCE_RULES, {
  claims: (place) => ({ claims: single(place, (value, name) => oneOf(value, CLAIMS, name)) }),
  grace: (place) => ({ graceMs: single(place, parseTime) }),
  containers: (place) => ({ containers: single(place, parseBoolean) }),
  except: (place) => ({ except: parseExceptions(place) }),
});
