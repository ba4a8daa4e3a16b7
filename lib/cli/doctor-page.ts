import type { Finding, Level, Subject } from '../doctor/index.ts';
import { listWords, wrapText } from '../platform/index.ts';

const TITLES: Record<Subject, string> = {
  installation: 'Installation',
  driver: 'Driver',
  gpus: 'GPUs',
  'lock-directory': 'Lock directory',
  surroundings: 'Surroundings',
  conventions: "Other tools' locks",
  configuration: 'What may be claimed',
};
const COLOURS: Record<Level, string> = { ok: '32', note: '36', warning: '33', problem: '31' };
const LEVELS: readonly Level[] = ['problem', 'warning', 'note'];

const INDENT = '  ';
const LEVEL_WIDTH = 'problem'.length;
const MIN_WIDTH = 50;
/** Longer lines are hard to read, however wide the terminal is. */
const MAX_WIDTH = 110;

export interface PageOptions {
  /** Columns of the terminal. */
  width: number;
  colour: boolean;
}

/** Findings for people: by subject, each with its remedy, and a summary at the end. */
export function doctorPage(findings: readonly Finding[], { width, colour }: PageOptions): string {
  const columns = Math.min(Math.max(width, MIN_WIDTH), MAX_WIDTH);
  const lines: string[] = [];
  let subject: Subject | null = null;
  for (const found of findings) {
    if (found.subject !== subject) {
      if (subject !== null) lines.push('');
      subject = found.subject;
      lines.push(paint(TITLES[subject], '1', colour));
    }
    lines.push(...entry(found, columns, colour));
  }
  return [...lines, '', ...conclusion(findings, columns, colour)].join('\n');
}

function entry({ id, level, text, remedy }: Finding, columns: number, colour: boolean): string[] {
  const start = INDENT.length + LEVEL_WIDTH + 2;
  const margin = ' '.repeat(start);
  // The name to look up in the documentation, or to tell somebody who helps.
  const name = `[${id}]`;
  const [first = '', ...rest] = wrapText(level === 'ok' ? text : `${text} ${name}`, columns - start).map(
    (line) =>
      level !== 'ok' && line.endsWith(name) ? line.slice(0, -name.length) + paint(name, '2', colour) : line,
  );
  const label = paint(level, COLOURS[level], colour) + ' '.repeat(LEVEL_WIDTH - level.length);
  const advice = remedy === null ? [] : wrapText(remedy, columns - start - 3);
  return [
    `${INDENT}${label}  ${first}`,
    ...rest.map((line) => margin + line),
    ...advice.map((line, i) => `${margin}${i === 0 ? '-> ' : '   '}${line}`),
  ];
}

function conclusion(findings: readonly Finding[], columns: number, colour: boolean): string[] {
  const counts = LEVELS.map((level) => findings.filter((found) => found.level === level).length);
  const words = LEVELS.flatMap((level, i) => {
    const count = counts[i] as number;
    return count === 0 ? [] : [paint(`${count} ${level}${count === 1 ? '' : 's'}`, COLOURS[level], colour)];
  });
  const [problems = 0] = counts;
  if (words.length === 0) return ['All is well.'];
  if (problems === 0) return [`No problem; ${listWords(words)}.`];
  const lines = findings
    .filter(({ level }) => level === 'problem')
    .map(({ id, text }) => `  ${shorten(`${id}: ${text}`, columns - 2)}`);
  return [`${listWords(words)}. ${problems === 1 ? 'The problem' : 'The problems'} in short:`, ...lines];
}

function shorten(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

function paint(text: string, code: string, colour: boolean): string {
  return colour ? `\u001b[${code}m${text}\u001b[0m` : text;
}
