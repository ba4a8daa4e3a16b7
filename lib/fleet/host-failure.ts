/** Why a host gave no answer. Codes of {@link GPUOwnerError} are the host's own. */
export const HOST_ERRORS = [
  'ERR_NO_SSH',
  'ERR_HOST_UNREACHABLE',
  'ERR_HOST_KEY',
  'ERR_HOST_LOGIN',
  'ERR_HOST_TIMEOUT',
  'ERR_HOST_NOT_INSTALLED',
  'ERR_HOST_VERSION',
  'ERR_HOST_ANSWER',
  'ERR_HOST_DIRECTORY',
] as const;
export type HostErrorCode = (typeof HOST_ERRORS)[number];

export interface HostFailure {
  code: string;
  /** One line: the cause, and what to do. */
  message: string;
}
