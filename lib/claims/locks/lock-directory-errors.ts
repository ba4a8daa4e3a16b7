import { GPUOwnerError } from '../../errors.ts';
import { mountPointOf } from '../../gpus/index.ts';
import { errno } from '../../native.ts';
import { formatMode, isMissing, sanitize, statusOf, systemError, userName } from '../../platform/index.ts';

/** A command that lists all names of a file: those of others show to root only. */
function namesCommand(path: string): string {
  return `find ${mountPointOf(path)} -xdev -samefile ${path}`;
}

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
  return unusable(path, `${isMissing(path) ? "can't be made" : "can't be used"}: ${systemError(error)}`);
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
      problem = `can't be opened: ${systemError(error)}`;
  }
  return new GPUOwnerError(
    'ERR_LOCK_DIRECTORY',
    sanitize(`the lock file ${path} ${problem}. ${remedy}`, 1_000),
  );
}
