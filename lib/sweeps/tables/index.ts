export { columnOf, NAME_COLUMN } from './cell-value.ts';
export { exportResults } from './export.ts';
export { columnsOfTable, findCompletedTasks } from './find-results.ts';
export { refuseUnusable } from './output-directories.ts';
export { ResultTables, type UnusableTable } from './result-tables.ts';
export { tablePath } from './table-file.ts';
