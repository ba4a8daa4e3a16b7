import { invalidValue } from '../platform/index.ts';
import { entriesOf, mapping, type Place, parseTime, single } from './yaml.ts';

/** Limits of one user. A limit that isn't set is missing; Infinity: none. */
export interface Limit {
  /** How many GPUs at a time. */
  gpus?: number;
  /** How long a command may run, in ms; also where its user sets no limit. */
  ms?: number;
}

/** Limits of a group. */
export interface GroupLimit extends Limit {
  /** How many GPUs all members hold together. */
  together?: number;
}

/** The key `limits` of a machine's file. */
export interface Limits {
  everybody: Limit;
  /** By name, or by number as text. */
  users: ReadonlyMap<string, Limit>;
  groups: ReadonlyMap<string, GroupLimit>;
}

const EXAMPLE = '{ gpus: 4, for: 24h }';

const PARTS = {
  gpus: (place: Place) => ({ gpus: single(place, parseGPUs) }),
  for: (place: Place) => ({ ms: single(place, (value, name) => unlimited(parseTime(value, name))) }),
};
const parseLimit = mapping<Limit>(EXAMPLE, {}, PARTS);

const GROUP_EXAMPLE = '{ gpus: 1, together: 8 }';
const parseGroupLimit = mapping<GroupLimit>(
  GROUP_EXAMPLE,
  {},
  { ...PARTS, together: (place: Place) => ({ together: single(place, parseGPUs) }) },
);

const named = <Each>(place: Place, parse: (place: Place) => Each, example: string) =>
  new Map([...entriesOf(place, example)].map(([name, each]) => [name, parse(each)]));

const parseMachineLimits = mapping<Limit & Partial<Pick<Limits, 'users' | 'groups'>>>(
  EXAMPLE,
  {},
  {
    ...PARTS,
    users: (place) => ({ users: named(place, parseLimit, EXAMPLE) }),
    groups: (place) => ({ groups: named(place, parseGroupLimit, GROUP_EXAMPLE) }),
  },
);

/** @param isMachine whether the file is the machine's: only that has limits of users and groups @throws ERR_CONFIGURATION */
export function parseLimits(place: Place, isMachine: boolean): Limits {
  if (!isMachine) return { everybody: parseLimit(place), users: new Map(), groups: new Map() };
  const { users = new Map(), groups = new Map(), ...everybody } = parseMachineLimits(place);
  return { everybody, users, groups };
}

/** 0 stands for no limit. */
function unlimited(number: number): number {
  return number === 0 ? Number.POSITIVE_INFINITY : number;
}

function parseGPUs(value: unknown, name: string): number {
  if (typeof value === 'number' && value >= 0 && value <= 1024) return unlimited(value);
  throw invalidValue(name, value, 'a number of GPUs', 'use 1, 2, …, or 0 for no limit');
}
