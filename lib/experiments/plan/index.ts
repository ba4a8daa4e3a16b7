export {
  type PhasePlan,
  type Plan,
  type PlannedTask,
  type PlanState,
  planExperiment,
  withKnownSeeds,
} from './plan.ts';
