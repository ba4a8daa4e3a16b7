import { errno, native } from '../native.ts';
import { type Directory, pathIn, statusOf, systemError, userName } from '../platform/index.ts';

/** Made by the package or an administrator, with mode 1777. */
const MACHINE_LEDGER = '/var/lib/gpu-owner/usage';

const TMPFS = 0x01021994;
const RAMFS = 0x858458f6;

/**
 * Where the ledger of a machine is; null: it has none, as nothing that could be written survives a reboot.
 * @param lockDirectory the machine's @param isSimulated a simulated machine keeps all that is its own in one place
 */
export function ledgerDirectory(lockDirectory: string, isSimulated: boolean): string | null {
  if (!isSimulated) {
    if (statusOf(MACHINE_LEDGER) !== null) return MACHINE_LEDGER;
    if ([TMPFS, RAMFS].includes(native().fileSystemType(lockDirectory))) return null;
  }
  return pathIn(lockDirectory, 'usage');
}

/** Why the ledger isn't used, and what to do about that; null: nothing is known to be wrong with the directory. */
function ledgerProblem(path: string): { cause: string; remedy: string } | null {
  const status = statusOf(path);
  if (status === null || status.kind === 'directory') return null;
  const isLink = status.kind === 'link';
  return {
    cause: `${path} is ${isLink ? 'a symbolic link' : 'no directory'} of ${userName(status.uid)}${isLink ? ', and no link is followed there' : ''}`,
    remedy: `As root: \`rm ${path}\`, \`install -d -m 1777 ${path}\`${isLink ? `; to have the ledger on another disk, \`mount --bind DIRECTORY ${path}\`` : ''}`,
  };
}

/** The same for an error of a call, as a positive errno. */
export function ledgerError(path: string, error: number): string {
  const problem = ledgerProblem(path);
  if (problem !== null) return `${problem.cause}. ${problem.remedy}`;
  if (error === errno.EFBIG)
    return `your leases of this month take ${MAX_MONTH_BYTES / 1024 ** 2} MiB in ${path}, and reports read no more`;
  return error === errno.ELOOP
    ? `${path} is below a symbolic link that is another user's, or that others can replace. Name the directory that \`readlink -f ${path}\` prints`
    : `${path}: ${systemError(error)}`;
}

/** `UID-YYYY-MM.jsonl`, in UTC, or with a random part: another user had made a file with that name. */
export const LEDGER_NAME = /^(\d{1,10})-(\d{4}-\d\d)(?:\.[0-9a-f]{16})?\.jsonl$/;

/** As much is written and read of a user's month, in bytes: 80,000 leases of one GPU. */
export const MAX_MONTH_BYTES = 32 * 1024 ** 2;

/** Upper bound on the files that a claim looks at: any user can create files with names of others. */
export const MAX_CLAIM_FILES = 256;

/** The name of a user's file of a month where another user has taken the usual one. No user can foresee it. */
export function ownLedgerName(directory: Directory, uid: number, month: string): string {
  const isOwn = (name: string) => {
    const status = directory.statusOf(name);
    return status?.uid === uid && status.links === 1;
  };
  const isMeant = (name: string) => name.startsWith(`${uid}-${month}.`) && LEDGER_NAME.test(name);
  const random = process.getBuiltinModule('node:crypto').randomBytes(8).toString('hex');
  const names = directory.names().filter(isMeant).slice(0, MAX_CLAIM_FILES);
  return names.find(isOwn) ?? `${uid}-${month}.${random}.jsonl`;
}
