import { canonical, type Place, type Task, type Value, type Values } from '../task/index.ts';
import { cellText, valueOfCell } from './meaning.ts';
import { columnOf, NAME_COLUMN } from './task-index.ts';

const RESULT_PREFIX = 'result_';

/**
 * The cells of a task's row by the names of their columns, in their order: its name, its parameters, its result.
 * @param parameterColumns of all tasks of the table: a result never goes there, or the row would be another task's
 */
export function cellsOf(
  task: Task,
  result: Values,
  parameterColumns: { has(column: string): boolean },
): Map<string, string> {
  const cells = new Map([[NAME_COLUMN, cellText(task.name)]]);
  for (const [key, value] of Object.entries(task.parameters)) cells.set(columnOf(key), cellText(value));
  for (const [key, value] of Object.entries(result)) {
    if (Object.hasOwn(task.parameters, key) && sameValue(task.parameters[key] as Value, value)) continue;
    let column = cellText(key).trim();
    if (column === '') column = RESULT_PREFIX;
    while (parameterColumns.has(column) || cells.has(column)) column = RESULT_PREFIX + column;
    cells.set(column, cellText(value));
  }
  return cells;
}

/** In a table for all output directories, a row may say of which phase or directory it is. */
export function withPlace(parameters: Values, { phase, outputDirectory }: Place): Values {
  return { phase, phase_name: phase, output_dir: outputDirectory, ...parameters };
}

/** What a row says beyond the parameters. Empty cells say nothing. */
export function resultOf(
  header: readonly string[],
  cells: readonly string[],
  parameterColumns: { has(column: string): boolean },
): Values {
  const result: Record<string, Value> = {};
  for (const [at, column] of header.entries()) {
    const cell = cells[at] ?? '';
    if (cell === '' || column === '' || column === NAME_COLUMN || parameterColumns.has(column)) continue;
    let key = column;
    while (key.startsWith(RESULT_PREFIX) && parameterColumns.has(key.slice(RESULT_PREFIX.length))) {
      key = key.slice(RESULT_PREFIX.length);
    }
    // As own data, also if it is called `__proto__`.
    Object.defineProperty(result, key, {
      value: valueOfCell(cell),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return result;
}

function sameValue(one: Value, other: Value): boolean {
  return canonical(one) === canonical(other);
}
