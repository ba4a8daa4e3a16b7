export { type Best, BestTrials, describeTrial, findLeft, isTrial, metricOf, STOPPED } from './best-trials.ts';
export { noteSearch, SearchRun, type WorkersHere } from './search-run.ts';
export { TrialCourse } from './trial-course.ts';
