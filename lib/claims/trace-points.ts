import { channel } from 'node:diagnostics_channel';

/** The steps of a claim, in order. `lease` is reached once per GPU. */
export const TRACE_POINTS = [
  'start',
  'driver',
  'acquisition-lock',
  'chosen',
  'lease',
  'leased',
  'marked',
  'looked-again',
  'unlocked',
  'environment',
  'placeholder',
  'claimed',
] as const;
export type TracePoint = (typeof TRACE_POINTS)[number];

const steps = channel('gpu-owner:step');
/** Read once: each look into the environment costs a microsecond. */
const stopAt = process.env.GPU_OWNER_STOP_AT;

/**
 * Marks that a claim has come this far. Subscribers of the diagnostics channel `gpu-owner:step` learn of it (benchmarks);
 * with `GPU_OWNER_STOP_AT=<step>` the process stops itself here (SIGSTOP), so that tests can kill a claimant at any point.
 */
export function reached(step: TracePoint): void {
  if (steps.hasSubscribers) steps.publish({ step, at: process.hrtime.bigint() });
  if (stopAt === step) process.kill(process.pid, 'SIGSTOP');
}
