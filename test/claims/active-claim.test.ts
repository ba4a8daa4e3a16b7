// Whatever goes wrong between the leases and the end of a claim, everything is given back.
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { ActiveClaim, type ContextHolder } from '../../lib/claims/active-claim.ts';
import { type Claim, claim, releaseClaim } from '../../lib/claims/claim.ts';
import {
  type Awaiting,
  awaiting,
  type ClaimSteps,
  runAsync,
  runSync,
} from '../../lib/claims/locks/effects.ts';
import { checkOptions } from '../../lib/claims/options.ts';
import { binaries } from '../support/binaries.ts';
import { Machine, output } from '../support/machine.ts';

const GPUS = 7;
const settings = () => checkOptions({});

let machine: Machine;
beforeAll(() => {
  machine = new Machine(GPUS); // one for all: a process keeps its driver
  for (const [name, value] of Object.entries(machine.env)) vi.stubEnv(name, value);
  vi.stubEnv('CUDA_VISIBLE_DEVICES', '0,1,2,3,4,5,6');
});
afterAll(() => {
  vi.unstubAllEnvs();
  return machine.close();
});

let ended = 0;
beforeEach(() => {
  ended = 0;
});

/** A placeholder that shows nowhere. */
const placeholder: ContextHolder = { pid: process.pid, isOn: () => false, end: () => ended++ };

function* take(): ClaimSteps<Claim> {
  const result = yield* claim(settings().request);
  if (!result.granted) throw result.error;
  return result;
}

/** As others see it. */
async function expectNothingHeld(): Promise<void> {
  expect(process.env.CUDA_VISIBLE_DEVICES).toBe('0,1,2,3,4,5,6');
  expect((await machine.status()).map(({ lease }) => lease)).toEqual(Array(GPUS).fill(null));
  const whole = runSync(claim(checkOptions({ count: 1, devices: '0' }).request));
  if (!whole.granted) throw whole.error;
  releaseClaim(whole);
}

/** Starts a program without a claim on a GPU. */
async function intrude(gpu: number): Promise<() => Promise<void>> {
  const child = machine.start([join(binaries(), 'gpu-owner-simulator'), 'occupy', String(gpu)]);
  await output(child, /ready/);
  return async () => {
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await gone;
  };
}

test('a placeholder that fails gives everything back', async () => {
  const failing = ActiveClaim.take(settings(), take, {
    ownEnvironment: true,
    // biome-ignore lint/correctness/useYield: it fails before
    *startPlaceholder({ variables }): ClaimSteps<ContextHolder> {
      expect(process.env.CUDA_VISIBLE_DEVICES).toBe(variables.CUDA_VISIBLE_DEVICES);
      throw new Error('no memory');
    },
  });
  expect(() => runSync(failing)).toThrow('no memory');
  await expectNothingHeld();
});

test('GPUs that can’t be shown are given back', async () => {
  function* unknown(): ClaimSteps<Claim> {
    const claimed = yield* take();
    return { ...claimed, gpus: claimed.gpus.map((gpu) => ({ ...gpu, uuid: '' })) };
  }
  for (const ownEnvironment of [true, false]) {
    const failing = ActiveClaim.take(settings(), unknown, {
      ownEnvironment,
      startPlaceholder: () => {
        throw new Error('too late');
      },
    });
    expect(() => runSync(failing)).toThrow('has no UUID');
    await expectNothingHeld();
  }
});

test('a claim that is aborted when its placeholder has started gives everything back', async () => {
  const controller = new AbortController();
  const claiming = ActiveClaim.take<ContextHolder, Awaiting>(settings(), takeAsync, {
    ownEnvironment: true,
    startPlaceholder: () =>
      awaiting(async () => {
        controller.abort();
        return placeholder;
      }),
  });
  await expect(runAsync(claiming, controller.signal)).rejects.toMatchObject({ code: 'ERR_ABORTED' });
  expect(ended).toBe(1);
  await expectNothingHeld();
});

function takeAsync(): ClaimSteps<Claim, Awaiting> {
  return awaiting(() => runAsync(take()));
}

test('if a program without a claim comes in between, other GPUs are taken, up to five times', async () => {
  const leave: (() => Promise<void>)[] = [];
  const shownTo: string[] = [];
  const claimWith = (intrusions: number) =>
    runAsync(
      ActiveClaim.take<ContextHolder, Awaiting>(settings(), takeAsync, {
        ownEnvironment: false,
        startPlaceholder: ({ gpus, variables }) =>
          awaiting(async () => {
            shownTo.push(variables.CUDA_VISIBLE_DEVICES);
            if (shownTo.length <= intrusions) leave.push(await intrude(gpus[0]?.index ?? -1));
            return placeholder;
          }),
      }),
    );
  const shown = await claimWith(1);
  expect(new Set(shownTo).size).toBe(2);
  expect(ended).toBe(1);
  shown.release();
  expect(ended).toBe(2);
  await Promise.all(leave.splice(0).map((each) => each()));
  shownTo.length = 0;
  await expect(claimWith(6)).rejects.toMatchObject({
    code: 'ERR_GPU_UNAVAILABLE',
    message: expect.stringMatching(
      /during the claim:\n {2}GPU \d: .*started on it while it was being claimed/,
    ),
  });
  expect(new Set(shownTo).size).toBe(6);
  expect(ended).toBe(8);
  await Promise.all(leave.map((each) => each()));
  await expectNothingHeld();
});
