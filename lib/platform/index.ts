export { invalidArgument, invalidValue, oneOf, parseAbsolutePath } from './argument.ts';
export { Directory, FOR_ALL, FOR_READING, readBlock } from './directory.ts';
export {
  type Endpoint,
  formatEndpoint,
  isLoopback,
  parseEndpoint,
  plainAddress,
  readToken,
  type SocketFile,
  tokenDigest,
} from './endpoint.ts';
export { prepend, setVariables } from './environment.ts';
export {
  decode,
  type FileStatus,
  formatMode,
  isDirectory,
  isMissing,
  isRoot,
  type Mount,
  mountOf,
  nearest,
  networkFileSystem,
  parseMounts,
  pathIn,
  privately,
  type Refuse,
  readAtMost,
  readLink,
  readMounts,
  readSmallFile,
  removeOlder,
  statusBehind,
  statusOf,
} from './files.ts';
export {
  hostIn,
  isLocalHost,
  openHTTPServer,
} from './http-server.ts';
export { idleText, idleTime } from './idle-text.ts';
export {
  describeOwner,
  type KernelLock,
  type LockOwner,
  lockedFiles,
  type OpenFile,
  ownersOf,
  parseLocks,
  readLocks,
  searchLockedFiles,
} from './kernel-locks.ts';
export { formatMoment, parseMoment } from './moments.ts';
export {
  descendsFrom,
  describeProcess,
  findGid,
  findUid,
  groupName,
  groupNames,
  groupsOf,
  isInForeground,
  isLocalUser,
  isRunnable,
  isUserOf,
  killGroup,
  lineage,
  MAX_USER_NAME_LENGTH,
  type ProcessDescription,
  pidNamespace,
  processCommand,
  processIds,
  readProcessStat,
  threadsOf,
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
export * as schema from './schema.ts';
export {
  avoidIdleWork,
  bootId,
  bootMilliseconds,
  errorReason,
  hostName,
  isNewMessage,
  lastMessage,
  onWarning,
  restoreMessages,
  saveMessages,
  systemError,
  warn,
  warnOnce,
} from './system.ts';
export {
  closest,
  csvLine,
  fitColumns,
  listWords,
  ordinal,
  outputLines,
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
  reuseAnswer,
  sleeping,
  timerMs,
  timestamp,
  type Wait,
  type Waiting,
} from './time.ts';
export { TIMEOUTS } from './timeouts.ts';
