import { errorMessage } from '../errors.ts';
import { invalidValue } from '../platform/index.ts';
import { entriesOf, namesIn, type Place } from './yaml.ts';

/** Another machine that is asked over ssh. */
export interface Host {
  /** As in `ssh NAME`: ~/.ssh/config decides on user, port and jumps. */
  name: string;
  /** How a shell there starts gpu-owner; null: it is looked for. */
  command: string | null;
}

const MAX_NAME_LENGTH = 255;
const MAX_COMMAND_LENGTH = 2_000;
/**
 * Names and addresses. No name is taken for an option, and none means anything to the shell of a ProxyCommand. Made when it is needed: each
 * start would pay half a millisecond for its letters.
 */
const namePattern = () => /^(?![-@])(?!.*@-)[\p{L}\p{N}_.:%@+[\]-]+$/u;

/**
 * The value of the key `hosts`: names, or `NAME=COMMAND`.
 * @throws ERR_INVALID_ARGUMENT
 */
export function parseHosts(value: unknown, option: string): Host[] {
  const entries: unknown[] = Array.isArray(value) ? value : [value];
  return uniqueHosts(entries.map((entry) => parseHost(entry, option)));
}

/** The value of the key `hostGroups`: hosts by the name of their group. @throws ERR_CONFIGURATION */
export function parseHostGroups(place: Place): Record<string, readonly string[]> {
  const example = '{ lab: [gpu1, gpu2] }';
  const checked = (name: string, at: unknown) => {
    try {
      return checkNewName(name, place.name);
    } catch (error) {
      throw place.refuse(at, errorMessage(error));
    }
  };
  const groups = [...entriesOf(place, example)];
  return Object.fromEntries(
    groups.map(([group, inner]) => {
      const names = namesIn(inner, example).map((name) => checked(name, inner.at));
      const nested = names.find((name) => name !== group && groups.some(([other]) => other === name));
      const why =
        names.length === 0
          ? 'it has no hosts; name some, or remove it'
          : `'${nested}' is a group itself; write its hosts`;
      if (names.length === 0 || nested !== undefined) throw place.refuse(inner.at, `${inner.name}: ${why}`);
      return [checked(group, inner.at), names];
    }),
  );
}

/** @throws ERR_INVALID_ARGUMENT */
export function checkHostName(name: unknown, option: string): string {
  if (typeof name === 'string' && name.length <= MAX_NAME_LENGTH && namePattern().test(name)) return name;
  throw invalid(option, name, 'use names as in `ssh NAME`. User and port belong into ~/.ssh/config');
}

/** The last entry of a name counts. */
function uniqueHosts(hosts: readonly Host[]): Host[] {
  return [...new Map(hosts.map((host) => [host.name, host])).values()];
}

function checkNewName(given: unknown, option: string): string {
  const name = checkHostName(given, option);
  if (name !== 'all' && name !== 'any') return name;
  throw invalid(option, name, 'it stands for all hosts; give the host another name');
}

function parseHost(entry: unknown, option: string): Host {
  const text = typeof entry === 'string' ? entry : '';
  const equals = text.indexOf('=');
  const name = checkNewName(equals < 0 ? entry : text.slice(0, equals), option);
  if (equals < 0) return { name, command: null };
  const command = text.slice(equals + 1).trim();
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is refused
  if (command !== '' && command.length <= MAX_COMMAND_LENGTH && !/[\0-\x1f\x7f]/.test(command))
    return { name, command };
  throw invalid(option, entry, 'use NAME=COMMAND, such as gpu3=/opt/gpu-owner/bin/gpu-owner');
}

function invalid(option: string, value: unknown, right: string): Error {
  return invalidValue(option, value, 'a valid host', right);
}
