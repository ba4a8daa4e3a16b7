export { type Best, BestTrials, describeTrial, isTrial } from './best-trials.ts';
export { noteSearch, pythonOf, SearchRun, type WorkersHere } from './search-run.ts';
export { STOPPED, TrialCourse } from './trial-course.ts';
