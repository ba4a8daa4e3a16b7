// Results on a terminal, 100 columns wide at most.
import { number, times } from './numbers.js';
import { ratio } from './table.js';

const WIDTH = 100;
const LABEL = 22;
const NARROW = 12;

/** @param style { bold, bad }: functions that make a text so */
export function tableText(table, style = plain) {
  const base = table.base === undefined ? '' : `; base: ${table.base}`;
  const heading = `${table.title}, in ${table.unit}${base}${table.note ? ` (${table.note})` : ''}`;
  const lines = wrap(heading, WIDTH).map(style.bold);
  const numbers = table.rows.flatMap((row) =>
    Object.entries(row.series).map(([series, summary]) => [row, series, cells(table, row, series, summary)]),
  );
  const head = ['median', 'middle half', '99 % below', table.base === undefined ? '' : 'times base'];
  const widths = head.map((text, i) => Math.max(text.length, ...numbers.map(([, , cell]) => cell[i].length)));
  const label = Math.min(LABEL, Math.max(...table.rows.map((row) => row.label.length)));
  const room = () => WIDTH - 4 - label - widths.reduce((sum, width) => sum + (width > 0 ? width + 2 : 0), 0);
  if (room() < NARROW) widths[2] = 0; // huge numbers
  const left = Math.min(Math.max(room(), NARROW), Math.max(...numbers.map(([, series]) => series.length)));
  const line = (first, second, rest) =>
    `  ${first.padEnd(label)}  ${second.padEnd(left)}${rest.map((text, i) => (widths[i] > 0 ? `  ${text.padStart(widths[i])}` : '')).join('')}`.trimEnd();
  lines.push(line('', '', head));
  for (const row of table.rows) {
    const labels = wrap(row.label, label);
    const own = numbers.filter(([each]) => each === row);
    const rows = own.flatMap(([, series, rest]) =>
      wrap(series, left).map((words, i) => [words, i === 0 ? rest : []]),
    );
    for (let i = 0; i < Math.max(labels.length, rows.length); i++) {
      lines.push(line(labels[i] ?? '', ...(rows[i] ?? ['', []])));
    }
  }
  for (const target of table.targets ?? []) {
    const mark = target.met ? '  met:    ' : '  missed: ';
    const text = wrap(`${target.text}: ${number(target.value)}`, WIDTH - mark.length);
    const indented = text.map((words, i) => `${i === 0 ? mark : ' '.repeat(mark.length)}${words}`);
    lines.push(...indented.map(target.met ? same : style.bad));
  }
  return lines.join('\n');
}

function cells(table, row, series, { n, median, low, high, p99 }) {
  const factor = ratio(table, row, series);
  return [
    number(median),
    n > 1 ? `${number(low)} to ${number(high)}` : '',
    n > 1 ? number(p99) : '',
    factor === null ? '' : times(factor),
  ];
}

/** Prints what was promised and what came of it, what is missing, and why. @param results as they are written */
export function summaryText({ benchmarks }, style = plain) {
  const all = Object.entries(benchmarks);
  const targets = all.flatMap(([name, { tables = [] }]) =>
    tables.flatMap((table) => (table.targets ?? []).map((target) => ({ name, table, ...target }))),
  );
  const missed = targets.filter(({ met }) => !met);
  const lines = [style.bold(`Targets: ${targets.length - missed.length} met, ${missed.length} missed`)];
  for (const { name, table, text, value } of missed) {
    lines.push(...hanging(`missed: ${name}, ${table.title}: ${text}: ${number(value)}`).map(style.bad));
  }
  const leftOut = all.flatMap(([name, { leftOut }]) => leftOut.map((each) => ({ name, ...each })));
  if (leftOut.length > 0) lines.push(style.bold('Left out:'));
  for (const { name, what, why } of leftOut) lines.push(...hanging(`${name}: ${what}: ${why}`));
  const failed = all.filter(([, { error }]) => error !== undefined);
  if (failed.length > 0) lines.push(style.bold('Failed:'));
  for (const [name, { error }] of failed) lines.push(...hanging(`${name}: ${error}`).map(style.bad));
  return lines.join('\n');
}

const same = (text) => text;
export const plain = { bold: same, bad: same };
export const coloured = {
  bold: (text) => `\x1b[1m${text}\x1b[22m`,
  bad: (text) => `\x1b[31m${text}\x1b[39m`,
};

const hanging = (text) => wrap(text, WIDTH - 4).map((line, i) => (i === 0 ? `  ${line}` : `    ${line}`));

/** Words that are longer than a line are broken. */
export function wrap(text, width) {
  const lines = [''];
  for (const part of text.split(/(?<= )/)) {
    for (let word = part; word !== ''; ) {
      const line = lines.at(-1);
      if ((line + word).trimEnd().length <= width) {
        lines[lines.length - 1] += word;
        word = '';
      } else if (line.trim() === '') {
        lines[lines.length - 1] = word.slice(0, width);
        word = word.slice(width);
        lines.push('');
      } else lines.push('');
    }
  }
  const trimmed = lines.map((line) => line.trimEnd());
  return trimmed.length > 1 && trimmed.at(-1) === '' ? trimmed.slice(0, -1) : trimmed;
}
