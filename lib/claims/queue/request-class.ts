// The class of a request: urgent ones are for those whom the machine's configuration names.
import { type Configuration, loadConfiguration, type UrgentUsers } from '../../config/index.ts';
import { GPUOwnerError } from '../../errors.ts';
import { isNamedIn, listWords, machineUid, userName } from '../../platform/index.ts';
import type { RequestClass } from '../rules/index.ts';

/** @param name what the user calls the option @throws ERR_NOT_PERMITTED, ERR_CONFIGURATION */
export function requestClass(
  isUrgent: boolean,
  name: string,
  { urgent }: Pick<Configuration, 'urgent'> = loadConfiguration(),
): RequestClass {
  if (!isUrgent) return 'normal';
  const uid = machineUid();
  if (uid === 0 || (urgent !== undefined && isNamedIn(uid, urgent))) return 'urgent';
  throw new GPUOwnerError(
    'ERR_NOT_PERMITTED',
    `${name}: ${userName(uid)} may make no urgent requests on this machine; ${whoMay(urgent)} may (\`urgent\` in the machine's configuration). Wait without it, or ask the administrator.`,
  );
}

export function whoMay({ users, groups }: UrgentUsers = { users: [], groups: [] }): string {
  const named = [...users, ...groups.map((group) => `the members of the group ${group}`)];
  return named.length === 0 ? 'only root' : listWords(named);
}
