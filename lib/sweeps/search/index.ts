export { findLeft, noteSearch, SearchRun, type WorkersHere } from './search-run.ts';
export { TrialCourse } from './trial-course.ts';
