import { readFileSync } from 'node:fs';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import { native } from '../native.ts';
import { systemError } from '../platform/index.ts';

/** The native program that keeps what a command needs: its place in the wait queue, then the leases of its GPUs. */
export const KEEPER = 'gpu-owner-keeper';

const SIGHUP = 1;

/** Names the variable with everything that Node.js has changed of its inheritance: the launcher writes it down. */
export const INHERITED = 'GPU_OWNER_INHERITED';

/** Descriptors that are handed on have numbers from this one on: Node.js marks low ones close-on-exec, and leaves these alone. */
export const FIRST_DESCRIPTOR = 200;

/** `sigign=0000000000000001 nofile=1024 fds=3,4 dropped=1`; what isn't of this form counts as nothing. */
export function parseInherited(text = '') {
  const value = (pattern: RegExp) => pattern.exec(text)?.[1];
  return {
    sigign: value(/(?:^| )sigign=([0-9a-f]{1,16})(?: |$)/),
    nofile: value(/(?:^| )nofile=(\d{1,10})(?: |$)/),
    dropped: Number(value(/(?:^| )dropped=(\d{1,4})(?: |$)/) ?? 0),
    descriptors: (value(/(?:^| )fds=(\d{1,9}(?:,\d{1,9}){0,99})(?: |$)/) ?? '')
      .split(',')
      .filter(Boolean)
      .map(Number),
  };
}

/** The same text for a program in which these descriptors are closed. */
export function withoutDescriptors(inherited: string): string {
  return inherited.replace(/ fds=[\d,]*/, '');
}

/** Whether a signal was ignored when this process was started, as by nohup. Node.js has reset it. */
export function wasIgnored(signal: number): boolean {
  const { sigign = '0' } = parseInherited(process.env[INHERITED]);
  return ((BigInt(`0x${sigign}`) >> BigInt(signal - 1)) & 1n) === 1n;
}

/** Has this process end with the connection if sshd has started it without a shell in between, as for `run --on`, unless by nohup. */
export function hangUpWithSSHD(): void {
  if (process.env.SSH_CONNECTION === undefined || wasIgnored(SIGHUP)) return;
  const name = ifPossible(() => readFileSync(`/proc/${process.ppid}/comm`, 'utf8'), '');
  if (/^(?:sshd|dropbear)/.test(name)) native().processHangUpWithParent();
}

/** A duplicate that the program has that this process becomes. @throws ERR_INTERNAL */
export function inheritable(descriptor: number): number {
  const duplicate = native().processInheritable(descriptor);
  if (duplicate >= 0) return duplicate;
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `no file descriptor is left for the keeper: ${systemError(-duplicate)}.`,
  );
}

/** Changes that make this process's environment another one. Every byte of the rest stays: strings can't carry all. */
export function changesTo(env: NodeJS.ProcessEnv): string[] {
  const names = new Set([...Object.keys(process.env), ...Object.keys(env)]);
  return [...names].flatMap((name) => {
    const value = env[name];
    if (value === process.env[name]) return [];
    return [value === undefined ? name : `${name}=${value}`];
  });
}
