import { getSystemErrorMap } from 'node:util';

const HINTS: Record<number, string> = {
  11: 'the limit on processes may have been reached: ulimit -u',
  12: 'memory is used up',
  22: 'the limit on open files may be too low: ulimit -n',
  24: 'the limit on open files has been reached: ulimit -n',
};

/** An errno value in words, with a hint where one helps: 'too many open files'. */
export function systemError(errno: number): string {
  const text = getSystemErrorMap().get(-errno)?.[1] ?? `system error ${errno}`;
  return HINTS[errno] === undefined ? text : `${text} (${HINTS[errno]})`;
}
