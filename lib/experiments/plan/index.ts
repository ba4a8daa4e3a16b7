export {
  type PhasePlan,
  type Plan,
  type PlannedTask,
  type PlanOptions,
  type PlanState,
  planSweep,
  withKnownSeeds,
} from './plan.ts';
