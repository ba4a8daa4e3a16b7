import { driverLibraries } from '../config/index.ts';
import { native } from '../native.ts';
import { onWarning } from '../platform/index.ts';
import {
  checkExclusion,
  checkHandOver,
  checkInstance,
  checkKeeperKilled,
  checkPlaceholder,
  checkPreemption,
  checkShares,
} from './claims.ts';
import { checkConfiguration } from './configuration.ts';
import type { Context, Machine } from './context.ts';
import {
  checkCudaDevices,
  checkCudaKilled,
  checkCudaListed,
  checkNestedClaims,
  checkSnapshot,
} from './cuda-program.ts';
import { CATALOGUE, endOf, type Finding, failure, finding, type Report } from './finding.ts';
import { checkGPUs } from './gpus.ts';
import { checkInstallation } from './installation.ts';
import { checkLockDirectory } from './lock-directory.ts';
import { checkFields } from './nvidia-smi.ts';
import { checkPyTorch } from './pytorch.ts';

interface DoctorCheck {
  needs: 'nothing';
  timeoutMs: number;
  run: (report: Report) => Promise<void> | void;
}

/** claim: made by the command of a claim; gpu: claims free GPUs, again and again. */
interface ClaimingCheck {
  needs: 'claim' | 'gpu';
  timeoutMs: number;
  startsCUDA?: true;
  /** Returns what it has found, or ends with fail() or skip(). */
  run: (context: Context) => Promise<string> | string;
}

/**
 * Every check, in the order of the reports. The doctor makes those that need nothing, the self-test the others. `timeoutMs` is the
 * most that it may take, or that one step of it may. Scripts depend on these names; docs/doctor.md explains each.
 */
export const CHECKS = {
  installation: { needs: 'nothing', timeoutMs: 5_000, run: checkInstallation },
  configuration: { needs: 'nothing', timeoutMs: 5_000, run: checkConfiguration },
  'lock-directory': { needs: 'nothing', timeoutMs: 5_000, run: checkLockDirectory },
  gpus: { needs: 'nothing', timeoutMs: 5_000, run: checkGPUs },

  snapshot: { needs: 'claim', timeoutMs: 60_000, run: checkSnapshot },
  fields: { needs: 'claim', timeoutMs: 90_000, run: ({ gpus }) => checkFields(gpus) },
  'cuda-devices': { needs: 'claim', timeoutMs: 60_000, run: checkCudaDevices },
  'cuda-listed': { needs: 'claim', timeoutMs: 70_000, startsCUDA: true, run: checkCudaListed },
  'cuda-killed': { needs: 'claim', timeoutMs: 30_000, startsCUDA: true, run: checkCudaKilled },
  'nested-claims': { needs: 'claim', timeoutMs: 180_000, startsCUDA: true, run: checkNestedClaims },

  placeholder: { needs: 'gpu', timeoutMs: 80_000, startsCUDA: true, run: checkPlaceholder },
  exclusion: { needs: 'gpu', timeoutMs: 130_000, run: checkExclusion },
  'hand-over': { needs: 'gpu', timeoutMs: 150_000, startsCUDA: true, run: checkHandOver },
  'keeper-killed': { needs: 'gpu', timeoutMs: 120_000, startsCUDA: true, run: checkKeeperKilled },
  shares: { needs: 'gpu', timeoutMs: 150_000, startsCUDA: true, run: checkShares },
  preemption: { needs: 'gpu', timeoutMs: 130_000, startsCUDA: true, run: checkPreemption },
  'pytorch-computes': { needs: 'gpu', timeoutMs: 170_000, startsCUDA: true, run: checkPyTorch },
  mig: { needs: 'gpu', timeoutMs: 150_000, startsCUDA: true, run: checkInstance },
} as const satisfies Record<string, DoctorCheck | ClaimingCheck>;

export type CheckName = keyof typeof CHECKS;

/** Checks that the self-test makes. */
export type TestName = {
  [Name in CheckName]: (typeof CHECKS)[Name]['needs'] extends 'nothing' ? never : Name;
}[CheckName];

type Needs = DoctorCheck['needs'] | ClaimingCheck['needs'];

export function checksThatNeed(...needs: readonly Needs[]): CheckName[] {
  return (Object.keys(CHECKS) as CheckName[]).filter((name) => needs.includes(CHECKS[name].needs));
}

/** A line of JSON that a process with checks prints. */
export type Message =
  | { begun: CheckName }
  | { step: string; timeoutMs: number }
  | { finding: Finding }
  | { machine: Machine }
  | { done: true };

/** Makes checks for the process that has started this one, and tells it line by line. @param context null: for those that need nothing */
export async function makeChecks(
  names: readonly CheckName[],
  context: Context | null,
  tell: (message: Message) => void,
): Promise<void> {
  onWarning(() => {}); // findings say the same in better words
  for (const name of names) {
    tell({ begun: name });
    const check: DoctorCheck | ClaimingCheck = CHECKS[name];
    if (check.needs === 'nothing') await examine(name, check, tell);
    else if (context !== null) tell({ finding: await attempt(name, check, context) });
  }
  tell({ done: true });
}

async function examine(name: CheckName, check: DoctorCheck, tell: (message: Message) => void): Promise<void> {
  try {
    await check.run({
      add: (id, text, remedy) => tell({ finding: finding(id, CATALOGUE[id], name, text, remedy) }),
      step: (step, timeoutMs = check.timeoutMs) => tell({ step, timeoutMs }),
    });
  } catch (error) {
    tell({ finding: failure(name, error) });
  }
}

async function attempt(name: CheckName, check: ClaimingCheck, context: Context): Promise<Finding> {
  if (check.startsCUDA && !hasCUDA())
    return finding(name, 'note', name, 'there is no CUDA (see cuda-devices)');
  try {
    return finding(name, 'ok', name, await check.run(context));
  } catch (error) {
    return endOf(name, error);
  }
}

function hasCUDA(): boolean {
  const { path, missing } = native().cudaLibrary(driverLibraries().cuda);
  return path !== '' && missing === '';
}
