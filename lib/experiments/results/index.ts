export { recordedTasks } from './completed-tasks.ts';
export { OutputDirectories, refuseUnusable } from './directories.ts';
export { type ExportFormat, exportResults } from './export.ts';
export { findResults, type Sought } from './find.ts';
export { tablePath } from './paths.ts';
export { ResultTables, type RowsOfTask } from './tables.ts';
