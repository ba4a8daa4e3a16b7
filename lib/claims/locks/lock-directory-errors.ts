import { dirname } from 'node:path';
import { GPUOwnerError } from '../../errors.ts';
import { mountPointOf } from '../../gpus/index.ts';
import { errno } from '../../native.ts';
import { formatMode, isMissing, sanitize, statusOf, systemError, userName } from '../../platform/index.ts';

/** A command that lists all names of a file: those of others show to root only. */
function namesCommand(path: string): string {
  return `find ${mountPointOf(path)} -xdev -samefile ${path}`;
}

const EMFILE = 24;

const REMEDY =
  'An administrator can set another one for everybody: `lockDirectory` in /etc/gpu-owner/config.yaml, or GPU_OWNER_LOCK_DIR.';

export function unusable(path: string, problem: string, remedy = REMEDY): GPUOwnerError {
  return new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    sanitize(`the lock directory ${path} ${problem}. ${remedy}`, 1_000),
  );
}

export function cannotMake(path: string, error: number): GPUOwnerError {
  const stat = statusOf(path);
  if (stat?.kind === 'link') {
    return unusable(
      path,
      'is a symbolic link, which is not followed',
      'Remove it, or name the directory that it leads to.',
    );
  }
  if (stat !== null && stat.kind !== 'directory')
    return unusable(path, 'is not a directory', 'Remove what is there.');
  switch (error) {
    case errno.ENOENT:
      return statusOf(dirname(path)) === null
        ? unusable(path, `can't be made: ${dirname(path)} doesn't exist`)
        : unusable(path, `can't be made: ${dirname(path)} takes no new directories`);
    case errno.ENOTDIR:
      return unusable(path, `can't be made: a part of ${dirname(path)} is not a directory`);
    case errno.ELOOP:
      return unusable(
        path,
        `can't be used: a part of ${dirname(path)} is a symbolic link that others may have put there, or that forms a loop`,
        'Name the directory that it leads to.',
      );
    case errno.EACCES:
    case errno.EPERM:
      if (stat !== null) return unusable(path, `can't be used: ${words(error)}`);
      return unusable(
        path,
        `doesn't exist, and ${userName(process.geteuid?.() ?? 0)} may not make it in ${dirname(path)}`,
      );
    default:
      return unusable(path, `${isMissing(path) ? "can't be made" : "can't be used"}: ${words(error)}`);
  }
}

export function cannotOpen(path: string, error: number): GPUOwnerError {
  const stat = statusOf(path);
  const owner = stat === null ? '' : ` (it belongs to ${userName(stat.uid)})`;
  let problem: string;
  let remedy = REMEDY;
  switch (error) {
    case errno.ELOOP:
      problem = `is a symbolic link${owner}: writing to it could change another file`;
      remedy = 'Remove it.';
      break;
    case errno.ENXIO:
    case errno.EISDIR:
      if (stat?.kind === 'file') {
        problem = `has ${stat.links} names (hard links) and mode ${formatMode(stat)}${owner}: it may be a private file that somebody linked there`;
        remedy = `As root, \`${namesCommand(path)}\` lists the names. If it is a lock file, \`chmod 0666 ${path}\`; if not, remove it.`;
        break;
      }
      problem = `is not a regular file${owner}`;
      remedy = 'Remove it.';
      break;
    case errno.EACCES:
    case errno.EPERM:
      problem =
        stat === null
          ? "can't be made: permission denied"
          : `can't be opened${owner}, mode ${formatMode(stat)}`;
      if (stat !== null)
        remedy = `Ask its owner for \`chmod 0666 ${path}\`; until then, nobody else can claim the GPU.`;
      break;
    default:
      problem = `can't be opened: ${words(error)}`;
      if (error === EMFILE) remedy = 'Raise it.';
  }
  return new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    sanitize(`the lock file ${path} ${problem}. ${remedy}`, 1_000),
  );
}

export function words(error: number): string {
  switch (error) {
    case errno.ENOSPC:
      return 'the file system is full (no space or no inodes left)';
    case errno.EDQUOT:
      return 'the disk quota is used up';
    case errno.EROFS:
      return 'the file system is read-only';
    default:
      return systemError(error);
  }
}
