import type { UrgentUsers } from '../config/index.ts';

/** Whether a user's requests may be urgent. @param groups the user's, among those that the configuration names */
export function mayBeUrgent(
  { uid, user, groups }: { uid: number; user: string; groups: readonly string[] },
  urgent: UrgentUsers | undefined,
): boolean {
  if (uid === 0) return true;
  if (urgent === undefined) return false;
  const isNamed = urgent.users.some((name) => name === user || name === String(uid));
  return isNamed || urgent.groups.some((group) => groups.includes(group));
}
