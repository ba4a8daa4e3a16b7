import { type ClaimOptions, snapshotAfterStartup } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { inheritedClaim } from '../gpus/index.ts';
import { now, oneOf } from '../platform/index.ts';
import { type CheckName, checksThatNeed, makeChecks } from './checks.ts';
import { type Context, describeMachine } from './context.ts';
import { stopPrograms } from './subprocess.ts';

interface PartOptions {
  command: readonly string[];
  claim: readonly string[];
  /** The same for claims of this process. */
  claimOptions: ClaimOptions;
  /** The checks to be made, as a list with commas; undefined: all. */
  only: string | undefined;
  write: (line: string) => void;
}

/**
 * Makes checks for the process that has started this one, and tells it line by line.
 * @param part claim or gpu, of the self-test, and after a colon UUIDs of its GPUs, by default those that this process was given; doctor
 */
export async function runPart(
  part: string,
  { command, claim, claimOptions, only, write }: PartOptions,
): Promise<void> {
  const [word, list] = part.split(':');
  const needs = word === 'doctor' ? 'nothing' : oneOf(word, ['claim', 'gpu'] as const, 'check-part');
  const names = parseChecks(only, checksThatNeed(needs));
  const tell = (message: object) => write(JSON.stringify(message));
  if (needs === 'nothing') return makeChecks(names, null, tell);
  // The parent of this process is gone, or has given up on it.
  process.stdin.on('close', () => void stopPrograms().then(() => process.exit(0))).resume();
  const began = now();
  const all = await snapshotAfterStartup();
  const startedInMs = now() - began;
  const uuids = list?.split(',') ?? [...(inheritedClaim(all) ?? [])];
  const [first, ...others] = uuids.flatMap((uuid) => all.filter((gpu) => gpu.uuid === uuid));
  if (first === undefined)
    throw new GPUOwnerError('ERR_DRIVER', 'the driver no longer lists the GPUs of the self-test');
  const gpus: Context['gpus'] = [first, ...others];
  if (needs === 'claim') tell({ machine: describeMachine(gpus) });
  await makeChecks(names, { command, claim, options: claimOptions, gpus, startedInMs, running: null }, tell);
  await stopPrograms();
}

/** Those of the checks that are in a list with commas. */
export function parseChecks(list: string | undefined, checks: readonly CheckName[]): CheckName[] {
  const all = checksThatNeed('nothing', 'claim', 'gpu');
  const names = list?.split(',').map((name) => oneOf(name, all, '--only')) ?? all;
  return checks.filter((name) => names.includes(name));
}
