import { type ClaimOptions, GPUOwner, snapshotAfterStartup } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { inheritedClaim } from '../gpus/index.ts';
import { now, oneOf } from '../platform/index.ts';
import { type CheckName, checksThatNeed, makeChecks } from './checks.ts';
import { type Context, describeMachine } from './context.ts';
import { stopPrograms } from './subprocess.ts';

const PARTS = ['claim', 'gpu', 'owner'] as const;

interface PartOptions {
  command: readonly string[];
  claim: readonly string[];
  /** The same for claims of this process. */
  claimOptions: ClaimOptions;
  /** The checks to be made, as a list with commas; undefined: all. */
  only: string | undefined;
  write: (line: string) => void;
}

/** Makes checks of the doctor for the process that has started this one, and tells it line by line. @param names with commas */
export async function makeDoctorChecks(names: string, write: (line: string) => void): Promise<void> {
  await makeChecks(parseChecks(names, checksThatNeed('nothing')), null, (message) =>
    write(JSON.stringify(message)),
  );
}

/** The same for the self-test. @param text a part, and after a colon UUIDs of its GPUs, by default those that this process was given */
export async function runPart(text: string, options: PartOptions): Promise<void> {
  const [name, uuidsOf] = text.split(':');
  const part = oneOf(name, PARTS, '--part');
  const { command, claim, claimOptions, only, write } = options;
  const on = uuidsOf?.split(',') ?? null;
  // The parent of this process is gone, or has given up on it.
  process.stdin.on('close', () => void stopPrograms().then(() => process.exit(0))).resume();
  if (part === 'owner') {
    const owner = new GPUOwner({ ...claimOptions, count: on?.length ?? 1, devices: on ?? [] });
    write(JSON.stringify({ owned: owner.devices.length }));
    return await new Promise(() => {}); // until standard input is closed
  }
  const began = now();
  const all = await snapshotAfterStartup();
  const startedInMs = now() - began;
  const uuids = on ?? [...(inheritedClaim(all) ?? [])];
  const [first, ...others] = uuids.flatMap((uuid) => all.filter((gpu) => gpu.uuid === uuid));
  if (first === undefined)
    throw new GPUOwnerError('ERR_DRIVER', 'the driver no longer lists the GPUs of the self-test');
  const gpus: Context['gpus'] = [first, ...others];
  if (part === 'claim') write(JSON.stringify({ machine: describeMachine(gpus) }));
  const context = { command, claim, options: claimOptions, gpus, startedInMs, running: null };
  await makeChecks(parseChecks(only, checksThatNeed(part)), context, (message) =>
    write(JSON.stringify(message)),
  );
  await stopPrograms();
}

/** Those of the checks that are in a list with commas. */
export function parseChecks(list: string | undefined, checks: readonly CheckName[]): CheckName[] {
  const all = checksThatNeed('nothing', 'claim', 'gpu');
  const names = list?.split(',').map((name) => oneOf(name, all, '--part and --only')) ?? all;
  return checks.filter((name) => names.includes(name));
}
