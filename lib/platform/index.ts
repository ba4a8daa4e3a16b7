export { Directory, FOR_ALL, FOR_READING } from './directory.ts';
export {
  type Endpoint,
  formatEndpoint,
  isLoopback,
  parseEndpoint,
  plainAddress,
  type SocketFile,
} from './endpoint.ts';
export {
  decode,
  type FileStatus,
  isDirectory,
  isMissing,
  isRoot,
  type Mount,
  mountOf,
  networkFileSystem,
  parseMounts,
  pathIn,
  type Refuse,
  readAtMost,
  readLink,
  readMounts,
  readSmallFile,
  statusBehind,
  statusOf,
} from './files.ts';
export {
  type HTTPServer,
  hostIn,
  isLocalHost,
  openHTTPServer,
} from './http-server.ts';
export {
  describeOwner,
  type KernelLock,
  type LockOwner,
  lockedFiles,
  ownersOf,
  parseLocks,
  readLocks,
} from './kernel-locks.ts';
export {
  descendsFrom,
  describeProcess,
  isInForeground,
  isRunnable,
  type ProcessDescription,
  pidNamespace,
  processIds,
  readProcessStat,
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
export {
  avoidIdleWork,
  bootId,
  bootMilliseconds,
  hostName,
  isNews,
  lastNews,
  onWarning,
  restoreTold,
  systemError,
  toldSoFar,
  warn,
  warnOnce,
} from './system.ts';
export {
  closest,
  fitColumns,
  listWords,
  ordinal,
  sanitize,
  shellWords,
  showValue,
  wrapText,
} from './text.ts';
export {
  isoTime,
  locking,
  MAX_TIMER_MS,
  now,
  pause,
  sleeping,
  timerMs,
  type Wait,
  type Waiting,
} from './time.ts';
export { readToken } from './token-file.ts';
