import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  type Stats,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join, resolve } from 'node:path';
import { asError, errorCode, GPUOwnerError } from '../../errors.ts';
import {
  errorReason,
  hostName,
  nearest,
  networkFileSystem,
  sanitize,
  schema,
  showValue,
  stateDirectory,
  statusOf,
  usageError,
  userName,
  warnOnce,
} from '../../platform/index.ts';
import { isShared, realPath, restrictMode, setSharedOwner, whyReplaceable } from './project-files.ts';

/** Where experiments are run: the directory that commands run in, and the one with what gpu-owner knows about them. */
export interface Project {
  /** Absolute, symbolic links resolved. */
  directory: string;
  /** Where the queue and the attempts' files are; on a local disk, unless the queue isn't there. */
  state: string;
  /**
   * The name of this machine, for names of logs, if the queue is on a server: workers of other machines may be in the same directory. Absent:
   * the queue is this machine's.
   */
  host?: string;
}

interface ProjectSettings {
  /** Tells the kind of network file system that a path is on; undefined: none. For tests. */
  network?: (path: string) => string | undefined;
  /** The queue is on a Redis: no state of the project needs a local disk, and many machines may work in its directory. Default: false. */
  isOnServer?: boolean;
  /** For tests. Default: this machine's. */
  host?: string;
}

const STATE = '.gpu-owner';
/** In the state directory of a project on a network file system: names the host and the directory that has the state. */
const POINTER = 'elsewhere.json';
/** Tells this project from others of the same name, in task lists on a server. */

/**
 * The project in a directory; its state directory is made if need be.
 * @throws ERR_INVALID_ARGUMENT where there is no such directory, ERR_QUEUE where its state can't be kept
 */
export function openProject(directory: string, settings: ProjectSettings = {}): Project {
  const found = locate(directory, settings);
  if (found.exists) return found.project;
  const { project, inside } = found;
  make(inside, project.directory);
  checkState(inside, project.directory); // another user may have been quicker
  // Nothing of it belongs into a repository.
  write(join(inside, '.gitignore'), '*\n');
  if (project.state !== inside) {
    makeElsewhere(project.state);
    const host = settings.host ?? hostName();
    write(join(inside, POINTER), `${JSON.stringify({ host, path: project.state })}\n`);
  }
  return project;
}

/** As {@link openProject} for those who only look: null where no state has been kept yet. */
export function findProject(directory: string, settings: ProjectSettings = {}): Project | null {
  const { exists, project } = locate(directory, settings);
  return exists ? project : null;
}

function locate(
  directory: string,
  { network = networkFileSystem, host = hostName(), isOnServer = false }: ProjectSettings,
): { project: Project; inside: string; exists: boolean } {
  const path = realDirectory(directory);
  const inside = join(path, STATE);
  refuseReplaceable(path, path);
  const there = checkState(inside, path);
  if (isOnServer) return { project: { directory: path, state: inside, host }, inside, exists: there };
  const system = network(path);
  if (system === undefined) return { project: { directory: path, state: inside }, inside, exists: there };
  const pointer = there ? readPointer(join(inside, POINTER)) : null;
  if (pointer !== null && pointer.host !== host) {
    throw unusable(
      path,
      `has its queue on ${pointer.host} (in ${pointer.path}), because it is on a network file system (${system}) and this is ${host}`,
      `Work on ${pointer.host}; or, if no process uses it there, remove ${join(inside, POINTER)} to start with a new queue here. ${SHARED_QUEUE}`,
    );
  }
  const state = pointer?.path ?? stateElsewhere(path);
  const home = network(nearest(state));
  if (home !== undefined) {
    throw unusable(
      path,
      `is on a network file system (${system}), and so is ${state} (${home}): a queue needs a local disk`,
      `Name one: XDG_STATE_HOME=/a/local/directory, or --queue sqlite:/a/local/path. ${SHARED_QUEUE}`,
    );
  }
  const exists = pointer !== null && checkState(state, path);
  refuseReplaceable(state, path);
  return { project: { directory: path, state }, inside, exists };
}

function realDirectory(directory: string): string {
  const path = resolve(directory);
  const refuse = (problem: string) =>
    usageError(sanitize(`the project directory ${path} ${problem}.`, 1_000));
  try {
    const real = realpathSync(path);
    if (!statSync(real).isDirectory()) throw refuse('is not a directory');
    return real;
  } catch (error) {
    if (asError(error).path?.includes('\ufffd'))
      throw refuse("can't be used, because its path isn't UTF-8: give it another name (convmv, or mv)");
    throw error instanceof GPUOwnerError ? error : refuse(`can't be used: ${errorReason(error)}`);
  }
}

function stateElsewhere(project: string): string {
  return join(stateDirectory(), 'gpu-owner', createHash('sha256').update(project).digest('hex').slice(0, 16));
}

/** Where another user can exchange a directory, the one that was looked at needn't be the one that is used. @throws ERR_QUEUE */
function refuseReplaceable(path: string, project: string): void {
  const why = whyReplaceable(path, statSync(project).uid);
  if (why === null) return;
  const problem = `isn't safe, since other users could run commands as you: ${why}`;
  throw unusable(project, problem, 'Or work in another directory.');
}

/**
 * Whether there is a state directory. Commands in a queue are run: they must be from this user, the project's owner, root, or a
 * group that shares the project; and only they may read it, since a reader of a file can lock it.
 * @throws ERR_QUEUE
 */
function checkState(path: string, project: string): boolean {
  const there = statusOf(path);
  if (there === null) return false;
  let stat: Stats;
  try {
    stat = statSync(path);
  } catch (error) {
    const isDangling = there.kind === 'link' && errorCode(error) === 'ENOENT';
    const why = isDangling ? 'it is a symbolic link that leads nowhere' : errorReason(error);
    throw unusable(project, `can't keep its queue in ${path}: ${why}`, isDangling ? 'Remove it.' : ELSEWHERE);
  }
  if (!stat.isDirectory())
    throw unusable(project, `can't keep its queue in ${path}, which is not a directory`, 'Remove that file.');
  const me = process.geteuid?.();
  const top = statSync(project);
  if (![0, me, top.uid].includes(stat.uid) && !isShared(top)) {
    throw unusable(
      project,
      `has a queue that belongs to ${userName(stat.uid)}, who could run any command as you`,
      `If you want that, name it: --queue sqlite:${join(path, 'queue.db')}. Else remove ${path}.`,
    );
  }
  const couldAllWrite = restrictMode(realPath(path), isShared(top) || isShared(stat));
  if (couldAllWrite) {
    const text = `everybody could write to ${path}, and so run commands as the users of its queue. Its mode was changed. A project is shared by its group: see \`gpu-owner docs results\`.`;
    warnOnce(sanitize(text, 1_000));
  } else if ((stat.mode & 0o002) !== 0 && stat.uid !== me) {
    const problem = `has a queue in ${path} that everybody may write to, so every user could run commands as you`;
    throw unusable(project, problem, `Its owner, ${userName(stat.uid)}, must run: chmod o-rwx ${path}.`);
  }
  return true;
}

const POINTER_CONTENTS = schema.jsonOf(schema.record({ host: schema.text, path: schema.absolutePath }));

function readPointer(path: string): { host: string; path: string } | null {
  if (!existsSync(path)) return null;
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw new GPUOwnerError('ERR_QUEUE', sanitize(`${path} can't be read: ${errorReason(error)}.`, 1_000));
  }
  const pointer = schema.readAs(POINTER_CONTENTS, text);
  if (pointer !== null) return pointer;
  const message = `${path} should say on which host and where the queue is, but says ${showValue(text)}. Correct it ({"host": "…", "path": "/…"}), or remove it to start with a new queue.`;
  throw new GPUOwnerError('ERR_QUEUE', sanitize(message, 1_000));
}

function make(path: string, project: string): void {
  const top = statSync(project);
  try {
    mkdirSync(path, 0o700);
    if (isShared(top)) setSharedOwner(path, top.gid);
  } catch (error) {
    const code = errorCode(error);
    if (code === 'EEXIST') return; // another process was quicker
    const whose = code === 'EACCES' ? ` (it belongs to ${userName(top.uid)})` : '';
    throw unusable(project, `can't keep a queue in ${STATE}: ${errorReason(error)}${whose}`, ELSEWHERE);
  }
}

function makeElsewhere(path: string): void {
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 });
  } catch (error) {
    const remedy = 'Set XDG_STATE_HOME to a directory that you can write to.';
    throw unusable(path, `can't be made for the queue: ${errorReason(error)}`, remedy);
  }
}

/** Writes a small file, unless it is there: all processes write the same. */
function write(path: string, text: string): void {
  try {
    writeFileSync(path, text, { flag: 'wx' });
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return;
    const message = `${path} can't be written: ${errorReason(error)}. ${ELSEWHERE}`;
    throw new GPUOwnerError('ERR_QUEUE', sanitize(message, 1_000));
  }
}

const SHARED_QUEUE = 'Several hosts can share a queue on Redis: --queue redis://HOST.';
const ELSEWHERE = 'Or put the queue elsewhere: --queue sqlite:/a/path, the same for all its workers.';

function unusable(project: string, problem: string, remedy: string): GPUOwnerError {
  return new GPUOwnerError('ERR_QUEUE', sanitize(`the project ${project} ${problem}. ${remedy}`, 1_000));
}
