// The values that a program of NNI has reported, as its SDK writes them for the local training service: see sweep/nni.ts.
import { dirname, join } from 'node:path';
import { isValues, parseValue, type TaskCommand, type Values } from '../task/index.ts';

/** The file with the reports of a command. @param task the file that describes the task @returns null: the command has no such file */
export function nniReports(command: TaskCommand, task: string): string | null {
  return 'shell' in command && command.shell.includes('NNI_SYS_DIR=')
    ? join(dirname(task), 'nni/.nni/metrics')
    : null;
}

/** The values of a line: `ME000096{"type": "PERIODICAL", "value": "0.3"}`. A number is called default, as in NNI. null: it has none. */
export function parseNNIReport(line: string): { isFinal: boolean; values: Values } | null {
  try {
    const report = parseValue(line.replace(/^ME\d{6}/, ''));
    if (!isValues(report) || typeof report.value !== 'string') return null;
    const value = parseValue(report.value);
    return { isFinal: report.type === 'FINAL', values: isValues(value) ? value : { default: value } };
  } catch {
    return null;
  }
}
