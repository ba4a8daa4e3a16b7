export {
  asKnown,
  type PhasePlan,
  type Plan,
  type PlannedTask,
  type PlanOptions,
  type PlanState,
  planSweep,
} from './plan.ts';
