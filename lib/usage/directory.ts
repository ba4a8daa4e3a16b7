import { native } from '../native.ts';
import { pathIn, statusOf } from '../platform/index.ts';

/** Made by the package or an administrator, with mode 1777. */
export const MACHINE_LEDGER = '/var/lib/gpu-owner/usage';

const TMPFS = 0x01021994;
const RAMFS = 0x858458f6;

/**
 * Where the ledger of a machine is; null: it has none, as nothing that could be written survives a reboot.
 * @param lockDirectory the machine's @param isSimulated a simulated machine keeps all that is its own in one place
 */
export function ledgerDirectory(lockDirectory: string, isSimulated: boolean): string | null {
  if (!isSimulated) {
    if (statusOf(MACHINE_LEDGER)?.kind === 'directory') return MACHINE_LEDGER;
    if ([TMPFS, RAMFS].includes(native().fileSystemType(lockDirectory))) return null;
  }
  return pathIn(lockDirectory, 'usage');
}

/** `UID-YYYY-MM.jsonl`, in UTC; N: another user had made a file with that name, and with those below N. */
export const LEDGER_NAME = /^(\d{1,10})-(\d{4}-\d\d)(?:\.\d)?\.jsonl$/;

export function ledgerName(uid: number, month: string, n: number): string {
  return `${uid}-${month}${n === 0 ? '' : `.${n}`}.jsonl`;
}
