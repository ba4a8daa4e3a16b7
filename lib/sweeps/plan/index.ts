export { type PhasePlan, type Plan, type PlannedTask, planExperiment, planSweep } from './plan.ts';
