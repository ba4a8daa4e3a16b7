// The fate of a user's processes at the last logout: logind may end them all (KillUserProcesses).

import { readdirSync } from 'node:fs';
import { ifPossible } from '../errors.ts';
import { isMissing, readSmallFile, userName, warn } from '../platform/index.ts';

/** Where logind reads from; what comes later counts more. */
const FILES = ['/usr/lib/systemd/logind.conf', '/etc/systemd/logind.conf'];
const DIRECTORIES = ['/usr/lib/systemd', '/run/systemd', '/etc/systemd'].map(
  (path) => `${path}/logind.conf.d`,
);

/**
 * stays: processes go on; ends: they don't; linger: they don't in a login's scope, but the user's service manager goes on, and so does
 * what is in a scope of that.
 */
type AfterLogout = 'stays' | 'ends' | 'linger';

function afterLogout(uid = process.geteuid?.() ?? 0): AfterLogout {
  // Without systemd there is no logind.
  if (isMissing('/run/systemd/system')) return 'stays';
  const user = userName(uid);
  const settings = readSettings();
  const listed = (key: string) => (settings.get(key) ?? '').split(/\s+/).filter(Boolean);
  const only = listed('KillOnlyUsers');
  const excluded = settings.has('KillExcludeUsers') ? listed('KillExcludeUsers') : ['root'];
  const isMeant = !excluded.includes(user) && (only.length === 0 || only.includes(user));
  if (!isTrue(settings.get('KillUserProcesses')) || !isMeant) return 'stays';
  // logind doubles the backslash of DOMAIN\user.
  return isMissing(`/var/lib/systemd/linger/${user.replaceAll('\\', '\\\\')}`) ? 'ends' : 'linger';
}

/**
 * The words before a program that is to be in a scope of the user's service manager: they become it. null: that manager can't be reached.
 */
function inScope(id: number): string[] | null {
  const { XDG_RUNTIME_DIR: runtime, PATH = '' } = process.env;
  if (!runtime || isMissing(`${runtime}/systemd/private`)) return null;
  const found = [...PATH.split(':'), '/usr/bin']
    .map((each) => `${each}/systemd-run`)
    .find((path) => !isMissing(path));
  const unit = `--unit=gpu-owner-job-${id}-${Date.now()}`;
  return found === undefined ? null : [found, '--user', '--scope', '--quiet', '--collect', unit, '--'];
}

function readSettings(): Map<string, string> {
  // A drop-in hides those of the same name in directories that count less.
  const dropIns = new Map<string, string>();
  for (const directory of DIRECTORIES) {
    for (const name of namesIn(directory))
      if (name.endsWith('.conf')) dropIns.set(name, `${directory}/${name}`);
  }
  const inOrder = [...dropIns].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, path]) => path);
  const settings = new Map<string, string>();
  for (const path of [...FILES, ...inOrder]) {
    for (const line of (readSmallFile(path) ?? '').split('\n')) {
      const [, key, value] = /^\s*(\w+)\s*=\s*(.*?)\s*$/.exec(line) ?? [];
      if (key !== undefined && value !== undefined) settings.set(key, value);
    }
  }
  return settings;
}

function namesIn(directory: string): string[] {
  return ifPossible(() => readdirSync(directory), []);
}

function isTrue(value = ''): boolean {
  return ['1', 'yes', 'y', 'true', 't', 'on'].includes(value.toLowerCase());
}

/** Where logging out would end the job, a scope that it doesn't; where there can be none, a warning. */
export function scopeWords(id: number): string[] {
  const after = afterLogout();
  if (after === 'stays') return [];
  const scope = after === 'linger' ? inScope(id) : null;
  if (scope !== null) return scope;
  warn(
    'logging out ends all your processes on this machine (KillUserProcesses in logind.conf), this job as well' +
      (after === 'linger'
        ? ', and your service manager can not be reached.'
        : ': to let it go on, ask for `loginctl enable-linger`, and submit it again.'),
  );
  return [];
}
