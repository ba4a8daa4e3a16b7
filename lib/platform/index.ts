export { isoTime, LONGEST_TIMER, now, pause, timerOf } from './clock.ts';
export { Directory, FOR_ALL, FOR_READING } from './directory.ts';
export { type FileStatus, isDirectory, isMissing, isRoot, statusBehind, statusOf } from './file-status.ts';
export { decode, type Refuse, readAtMost } from './file-text.ts';
export { bootId, bootMilliseconds, hostName } from './host.ts';
export { describeOwner, type LockOwner, lockedFiles, ownersOf } from './lock-owners.ts';
export { networkFileSystem } from './network-file-system.ts';
export { pathIn } from './paths.ts';
export {
  descendsFrom,
  describeProcess,
  type ProcessDescription,
  pidNamespace,
  userName,
} from './processes.ts';
export {
  formatBytes,
  formatDuration,
  formatSince,
  parseCelsius,
  parseDuration,
  parsePercent,
  parseSize,
  parseWatts,
} from './quantities.ts';
export { kernelLocks, targetOf, textOf } from './small-files.ts';
export { systemError } from './system-errors.ts';
export { closest, listWords, sanitize, shellWords, showValue, wrapText } from './text.ts';
export { locking, sleeping, type Wait, type Waiting } from './waits.ts';
export { onWarning, warn, warnOnce } from './warnings.ts';
