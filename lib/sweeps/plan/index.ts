export { asKnown } from './known-sweep.ts';
export { planExperiment, planSweep } from './plan.ts';
export type { PhasePlan, Plan, PlannedTask, PlanState } from './types.ts';
