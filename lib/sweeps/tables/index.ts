export { exportResults } from './export.ts';
export { findCompletedTasks } from './find-results.ts';
export { refuseUnusable } from './output-directories.ts';
export { ResultTables, type UnusableTable } from './result-tables.ts';
export { tablePath } from './table-file.ts';
