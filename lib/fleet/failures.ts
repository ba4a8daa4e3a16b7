// Why a host gave no answer: each cause with what to do.
import type { Host } from '../config/index.ts';
import { sanitize, schema, showValue } from '../platform/index.ts';
import type { HostFailure } from './host-failure.ts';
import { isMark } from './request.ts';
import { type SSHResult, sshProgram } from './ssh.ts';
import { explainSSH, isChatter } from './ssh-messages.ts';

export const MAX_MESSAGE_LENGTH = 300;

/** There is no ssh here. */
export function noSSH(): HostFailure {
  return { code: 'ERR_NO_SSH', message: `${sshProgram()} is not installed here. Install the OpenSSH client` };
}

export function notInstalled({ name }: Host): HostFailure {
  return {
    code: 'ERR_HOST_NOT_INSTALLED',
    message: `gpu-owner is neither in PATH nor in ~/.local/bin there. Install it, or say where it is: 'hosts: ["${name}=/PATH/gpu-owner"]' in your configuration`,
  };
}

/** Without the directory in which the command was to run. */
export function noDirectory({ name }: Host, directory: string): HostFailure {
  return {
    code: 'ERR_HOST_DIRECTORY',
    message: `there is no directory ${showValue(directory)}, or you may not enter it. Make it there, or name another one: --on ${name}:/DIR`,
  };
}

const ERROR_LINE = schema.jsonOf(
  schema.record({
    error: schema.record({
      code: schema.matching(/^ERR_[A-Z_]+$/),
      message: schema.text,
      unknown: schema.optional(schema.text),
    }),
  }),
);

/**
 * The error that a gpu-owner there has written as JSON; else the last line, as of a process that crashed. `unknown`: the option or command
 * that it doesn't have, in words.
 */
export function remoteError(
  errors: string,
  exitCode: number,
): HostFailure & { unknown?: string | undefined } {
  for (const line of errors.split('\n').reverse()) {
    const found = schema.readAs(ERROR_LINE, line);
    if (found !== null) return found.error;
  }
  const said = lastLine(errors).replace(/^gpu-owner: /, '');
  return { code: 'ERR_HOST_ANSWER', message: `gpu-owner there failed with exit code ${exitCode}: ${said}` };
}

/** The cause for a connection that was there. */
export function brokenConnection(errors: string): string {
  const line = lastLine(errors, '');
  return `the connection broke${line && ': '}${line}`;
}

/** Why ssh ended without an answer. */
export function explain({ name }: Host, { exitCode, output, errors }: SSHResult): HostFailure {
  // Other programs can have these words in what they say, but ssh ends with 255.
  if (exitCode === 255) {
    return (
      explainSSH(name, errors) ?? {
        code: 'ERR_HOST_UNREACHABLE',
        message: `ssh failed: ${lastLine(errors)}. Try \`ssh ${name} true\``,
      }
    );
  }
  const { code, message } = remoteError(errors, exitCode ?? 0);
  if (code !== 'ERR_HOST_ANSWER') return { code, message };
  const said = errors.trim() === '' ? lastLine(output) : lastLine(errors);
  return {
    code,
    message: `its shell ran no command (exit code ${exitCode}): ${said}. Try \`ssh ${name} true\``,
  };
}

/** The last line that says something. */
export function lastLine(text: string, otherwise = 'it printed nothing'): string {
  const lines = text
    .slice(-10_000)
    .split('\n')
    .map((each) => sanitize(each));
  const line = lines.findLast((each) => each !== '' && !isMark(each) && !isChatter(each));
  return (line ?? otherwise).replace(/\.$/, '');
}
