// Where this user's own files are. `su -m` and `sudo -E` leave variables that lead to the files of another user.

import { dirname } from 'node:path';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import { type FileStatus, isRoot, pathIn, statusAt, statusOf } from './files.ts';
import { userName } from './processes.ts';
import { isAbsolutePath } from './schema.ts';
import { warnOnce } from './system.ts';
import { sanitize } from './text.ts';
import { now } from './time.ts';

const KINDS = {
  config: { variable: 'XDG_CONFIG_HOME', inHome: '.config' },
  state: { variable: 'XDG_STATE_HOME', inHome: '.local/state' },
} as const;
const OURS = 'gpu-owner';

/** The directory of this user's files of a kind; null: neither its variable nor HOME says which. The specification has relative paths ignored. */
export function userDirectory(kind: keyof typeof KINDS, env: NodeJS.ProcessEnv = process.env): string | null {
  const { variable, inHome } = KINDS[kind];
  const given = env[variable];
  if (isAbsolutePath(given) && isTrusted(variable, given, OURS)) return given;
  const home = homeDirectory(env);
  const isFound = home !== null && isTrusted('HOME', home, `${inHome}/${OURS}`);
  return isFound ? pathIn(home, inHome) : null;
}

/** The user's home: HOME, or that of the account where HOME isn't set or is another user's; null: there is none. */
export function homeDirectory({ HOME: given }: NodeJS.ProcessEnv = process.env): string | null {
  if (isAbsolutePath(given) && isTrusted('HOME', given)) return given;
  return given && !isAbsolutePath(given) ? null : accountHome();
}

function accountHome(): string | null {
  // A uid may have no account.
  const homedir = ifPossible(() => process.getBuiltinModule('node:os').userInfo().homedir, null);
  return isAbsolutePath(homedir) ? homedir : null;
}

/** A claim asks for the same directories several times; each look takes a system call for each part of the path. In ms. */
const REMEMBERED_MS = 1_000;
const remembered = new Map<string, { at: number; isTrusted: boolean }>();

function isTrusted(variable: string, path: string, below = ''): boolean {
  const key = [variable, path, below].join('\0');
  const known = remembered.get(key);
  if (known !== undefined && now() - known.at < REMEMBERED_MS) return known.isTrusted;
  const found = { at: now(), isTrusted: judge(variable, path, below) };
  remembered.set(key, found);
  return found.isTrusted;
}

/** As sudo and ssh judge: what a variable names must be this user's or root's, as far as it exists, and no link there another user's. */
function judge(variable: string, path: string, below: string): boolean {
  const foreign = foreignPart(below === '' ? path : pathIn(path, below));
  if (foreign === null || (variable === 'HOME' && path === accountHome())) return true;
  const whose = `${foreign.at === path ? '' : `: ${foreign.at}`} belongs to ${userName(foreign.uid)}`;
  warnOnce(
    `${variable}=${sanitize(path, 500)}${whose}, not to ${userName(process.geteuid?.() ?? 0)}, so it is ignored.`,
  );
  return false;
}

/** The nearest part of a path that exists, or a link in the path, if it is another user's. */
function foreignPart(path: string): { at: string; uid: number } | null {
  let nearest: { at: string; uid: number } | null = null;
  for (let at = path; ; at = dirname(at)) {
    const status = statusOf(at);
    if (status?.kind === 'link' && !isOwn(status.uid)) return { at, uid: status.uid };
    const target: FileStatus | null = nearest === null ? statusAt(at) : null;
    if (target !== null) nearest = { at, uid: target.uid };
    if (at === dirname(at)) return nearest === null || isOwn(nearest.uid) ? null : nearest;
  }
}

/** Whether files of this uid are this user's or root's. */
export function isOwn(uid: number): boolean {
  return uid === process.geteuid?.() || isRoot(uid);
}

/** Where this user's programs keep their state. @throws ERR_JOBS */
export function stateDirectory(): string {
  const directory = userDirectory('state');
  if (directory !== null) return directory;
  throw new GPUOwnerError(
    'ERR_JOBS',
    'there is no place for background jobs: HOME is no absolute path. Set it, or XDG_STATE_HOME, to one.',
  );
}
