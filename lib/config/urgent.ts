import { mapping, namesIn } from './yaml.ts';

/** The key `urgent` of a machine's file: users and groups whose requests may be urgent, by name, or by number as text. */
export interface UrgentUsers {
  users: readonly string[];
  groups: readonly string[];
}

const EXAMPLE = '{ users: [alice], groups: [staff] }';

/** @throws ERR_CONFIGURATION */
export const parseUrgent = mapping<UrgentUsers>(
  EXAMPLE,
  { users: [], groups: [] },
  {
    users: (place) => ({ users: namesIn(place, EXAMPLE) }),
    groups: (place) => ({ groups: namesIn(place, EXAMPLE) }),
  },
);
