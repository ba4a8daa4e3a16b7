// The fate of a user's processes at the last logout: logind may end them all (KillUserProcesses).

import { readdirSync } from 'node:fs';
import { basename } from 'node:path';
import { ifPossible } from '../errors.ts';
import { isMissing, readSmallFile, userName, warn } from '../platform/index.ts';

/** Where logind reads from; the file whose name comes last counts. */
const DIRECTORIES = ['/usr/lib/systemd', '/run/systemd', '/etc/systemd'];

/** logind's settings about the processes of users, of whom it ends some. */
function endsProcessesOf(user: string): boolean {
  // Without systemd there is no logind.
  if (isMissing('/run/systemd/system')) return false;
  const dropIns = DIRECTORIES.flatMap((directory) => namesIn(`${directory}/logind.conf.d`));
  const files = [...DIRECTORIES.map((directory) => `${directory}/logind.conf`), ...dropIns.sort(byName)];
  const text = files.map((path) => readSmallFile(path) ?? '').join('\n');
  const setting = (key: string) =>
    text
      .match(new RegExp(`(?<=^\\s*${key}\\s*=).*`, 'gm'))
      ?.at(-1)
      ?.trim();
  const listed = (key: string, byDefault: string) => (setting(key) ?? byDefault).split(/\s+/).filter(Boolean);
  const only = listed('KillOnlyUsers', user);
  if (listed('KillExcludeUsers', 'root').includes(user) || !(only.length === 0 || only.includes(user)))
    return false;
  return /^(?:1|yes|y|true|t|on)$/i.test(setting('KillUserProcesses') ?? '');
}

/** The drop-ins in a directory. */
function namesIn(directory: string): string[] {
  const names = ifPossible(() => readdirSync(directory), []);
  return names.filter((name) => name.endsWith('.conf')).map((name) => `${directory}/${name}`);
}

function byName(a: string, b: string): number {
  return basename(a) < basename(b) ? -1 : 1;
}

/**
 * The words before a program that is to be in a scope of the user's service manager: they become it. null: that manager can't be reached.
 */
function inScope(id: number): string[] | null {
  const { XDG_RUNTIME_DIR: runtime } = process.env;
  if (!runtime || isMissing(`${runtime}/systemd/private`)) return null;
  const unit = `--unit=gpu-owner-job-${id}-${Date.now()}`;
  return ['/usr/bin/env', 'systemd-run', '--user', '--scope', '--quiet', '--collect', unit, '--'];
}

/** Where logging out would end the job, a scope that it doesn't; where there can be none, a warning. */
export function scopeWords(id: number): string[] {
  const user = userName(process.geteuid?.() ?? 0);
  if (!endsProcessesOf(user)) return [];
  // logind doubles the backslash of DOMAIN\user.
  const lingers = !isMissing(`/var/lib/systemd/linger/${user.replaceAll('\\', '\\\\')}`);
  const scope = lingers ? inScope(id) : null;
  if (scope !== null) return scope;
  warn(
    'logging out ends all your processes on this machine (KillUserProcesses in logind.conf), this job as well' +
      (lingers
        ? ', and your service manager can not be reached.'
        : ': to let it go on, ask for `loginctl enable-linger`, and submit it again.'),
  );
  return [];
}
