import type { Limit, Limits } from '../../config/index.ts';

/** How many GPUs the members of a group may hold together. */
export interface TogetherLimit {
  group: string;
  gid: number;
  most: number;
}

/** The limits of one user. Infinity: none. */
export interface UserLimit {
  /** GPUs at a time. */
  gpus: number;
  /** How long a command may run, in ms. */
  ms: number;
}

/**
 * The limits of a user: those of the machine for the user, else the most generous of the user's groups, else those for everybody.
 * The user's own limits may lower them. Root has its own ones only.
 * @param groups by name and by number
 */
export function limitOf(
  { uid, user, groups }: { uid: number; user: string; groups: readonly string[] },
  machine: Limits | undefined,
  own: Limit = {},
): UserLimit {
  const of = (key: keyof Limit): number => {
    const named = machine?.users.get(user)?.[key] ?? machine?.users.get(String(uid))?.[key];
    const ofGroups = groups.flatMap((group) => machine?.groups.get(group)?.[key] ?? []);
    const most = named ?? (ofGroups.length > 0 ? Math.max(...ofGroups) : machine?.everybody[key]);
    return Math.min(
      own[key] ?? Number.POSITIVE_INFINITY,
      uid === 0 ? Number.POSITIVE_INFINITY : (most ?? Number.POSITIVE_INFINITY),
    );
  };
  return { gpus: of('gpus'), ms: of('ms') };
}

/** MIG instances are parts whose sums aren't exact. */
const TOLERANCE = 1e-6;

export function isAboveLimit(gpus: number, limit: number): boolean {
  return gpus > limit + TOLERANCE;
}
