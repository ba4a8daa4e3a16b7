export { type Best, BestTrials, describeTrial, isTrial, metricOf, STOPPED, stepOf } from './best-trials.ts';
export {
  Eta,
  formatProgress,
  formatRate,
  isOver,
  type Progress,
  type RunProgress,
  readFailures,
  readProgress,
  readStatus,
  type Status,
  statusJSON,
  type Tally,
  tallyOf,
} from './progress.ts';
