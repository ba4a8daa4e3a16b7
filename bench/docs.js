// Brings the figures of the documentation in line with one run of all benchmarks, docs/benchmarks/results.json.
//   node bench/docs.js            from these results
//   node bench/docs.js RESULTS    from others, which take their place: what `npm run bench -- --docs` does at its end
//
// In docs/benchmarks.md, figures stand between comments, which readers don't see:
//   <!-- figures: idle -->       a block: tables and targets of a benchmark; or `conditions`, `targets`, `left out`, and `rest` for
//   <!-- end of figures -->      benchmarks without a block of their own
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { machineText } from './machine.js';
import { duration, number, times, unitName } from './numbers.js';
import { wrap } from './print.js';
import { ratio, seriesOf } from './table.js';

const root = dirname(import.meta.dirname);
const directory = join(root, 'docs/benchmarks');
const PAGE = 'docs/benchmarks.md';
const BLOCK = /(<!-- figures: (.+?) -->\n)[\s\S]*?(<!-- end of figures -->)/g;
const ABSENT = '*Not measured in this run.*';
const COLUMNS = 120;

/** Renders the documentation for these results. @returns path below the repository's root -> content */
export function documentation(results) {
  const text = `${JSON.stringify(rounded(results), null, 1)}\n`;
  return new Map([
    ['docs/benchmarks/results.json', text],
    [PAGE, fill(page(), JSON.parse(text))],
  ]);
}

/** @returns the files that changed, below the repository's root */
export function writeDocs(results) {
  mkdirSync(directory, { recursive: true });
  const files = documentation(results);
  const changed = [...files].filter(([path, content]) => {
    const file = join(root, path);
    return !existsSync(file) || readFileSync(file, 'utf8') !== content;
  });
  for (const [path, content] of changed) writeFileSync(join(root, path), content);
  return changed.map(([path]) => path);
}

/** Finds the places in the page that have no figures. */
export function absences() {
  return [...page().matchAll(BLOCK)]
    .filter(([text]) => text.includes(ABSENT))
    .map(([, , name]) => `${PAGE}: '${name}' is not in these results`);
}

const page = () => readFileSync(join(root, PAGE), 'utf8');

/** The page with its figures. */
export function fill(content, results) {
  const blocks = [...content.matchAll(BLOCK)];
  const begun = content.split('<!-- figure').length - 1;
  if (begun !== blocks.length)
    throw new Error(`${PAGE}: ${begun} figures begin, but ${blocks.length} are complete`);
  const own = new Set(blocks.map(([, , name]) => name));
  return content.replace(BLOCK, (_, begin, name, end) => `${begin}${block(name, results, own)}\n${end}`);
}

function block(name, results, own) {
  if (name === 'conditions') return conditions(results);
  if (name === 'targets') return targets(results);
  if (name === 'left out') return leftOut(results);
  if (name === 'rest') {
    const rest = Object.entries(results.benchmarks).filter(([each]) => !own.has(each));
    return rest
      .map(([each, { title, question }]) => `## ${title}\n\n${broken(question)}\n\n${section(each, results)}`)
      .join('\n\n');
  }
  return section(name, results);
}

function section(name, results) {
  const benchmark = results.benchmarks[name];
  if (benchmark === undefined) return ABSENT;
  const parts = benchmark.tables.flatMap((table) => {
    return [heading(table), markdownTable(table), ...targetList(table)];
  });
  return parts.join('\n\n');
}

function heading(table) {
  const counts = table.rows.flatMap(({ series }) => Object.values(series).map(({ n }) => n));
  const [least, most] = [Math.min(...counts), Math.max(...counts)];
  const many = [...new Set([least, most])].map((count) => count.toLocaleString('en-US')).join(' to ');
  const statistics = most === 1 ? 'one measurement each' : `median of ${many}, and the middle half`;
  const base = table.base === undefined ? '' : `; × is the ratio to “${table.base}”`;
  const note = table.note === undefined ? '' : ` ${capital(table.note)}.`.replace(/\.\.$/, '.');
  return broken(`**${table.title}**, in ${unitName(table.unit)}: ${statistics}${base}.${note}`);
}

/** Text in lines as other pages have them. @param indent of all lines but the first */
function broken(text, indent = '') {
  return wrap(text, COLUMNS - indent.length).join(`\n${indent}`);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** More things below each other than beside each other. */
function markdownTable(table) {
  const series = seriesOf(table);
  const [labels, columns, at] =
    series.length > table.rows.length
      ? [series, table.rows.map(({ label }) => label), (i, k) => cell(table, table.rows[k], series[i])]
      : [table.rows.map(({ label }) => label), series, (i, k) => cell(table, table.rows[i], series[k])];
  const line = (words) => `| ${words.map((word) => word.replaceAll('|', '\\|')).join(' | ')} |`;
  return [
    line(['', ...columns]),
    `|---|${columns.map(() => '---:|').join('')}`,
    ...labels.map((label, i) => line([label, ...columns.map((_, k) => at(i, k))])),
  ].join('\n');
}

function cell(table, row, series) {
  const summary = row.series[series];
  if (summary === undefined) return '';
  const factor = ratio(table, row, series);
  const spread = summary.n > 1 ? ` (${number(summary.low)} to ${number(summary.high)})` : '';
  return `**${number(summary.median)}**${spread}${factor === null ? '' : `, ${times(factor)}×`}`;
}

function targetList({ targets: list = [] }) {
  if (list.length === 0) return [];
  return [
    list
      .map(({ met, text, value }) =>
        broken(`- ${met ? 'met' : '**missed**'}: ${text}: ${number(value)}`, '  '),
      )
      .join('\n'),
  ];
}

function conditions({ machine, date, load, seconds }) {
  return broken(
    `Measured on ${date.slice(0, 10)} in one run of ${duration(seconds)}: ${machineText(machine)}. ` +
      `Load averages (1, 5 and 15 minutes) before it: ${load.before.join(', ')}; after it: ${load.after.join(', ')}.`,
  );
}

function targets({ benchmarks }) {
  const rows = Object.values(benchmarks).flatMap(({ title, tables }) =>
    tables.flatMap((table) =>
      (table.targets ?? []).map(
        ({ text, value, met }) => `| ${title} | ${text} | ${number(value)} | ${met ? 'met' : '**missed**'} |`,
      ),
    ),
  );
  if (rows.length === 0) return 'These results have none.';
  return ['| | target | measured | |', '|---|---|---:|---|', ...rows].join('\n');
}

function leftOut({ benchmarks }) {
  const lines = Object.values(benchmarks).flatMap(({ title, leftOut: list }) =>
    list.map(({ what, why }) => broken(`- ${title}: ${what}. Why: ${why}.`, '  ')),
  );
  return lines.length === 0 ? 'Nothing was left out.' : lines.join('\n');
}

/** More digits would only make differences between runs longer. */
function rounded(value) {
  if (typeof value === 'number') return Number(value.toPrecision(5));
  if (Array.isArray(value)) return value.map(rounded);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, rounded(each)]));
}

if (process.argv[1] === import.meta.filename) {
  const file = process.argv[2] ?? join(directory, 'results.json');
  for (const path of writeDocs(JSON.parse(readFileSync(file, 'utf8')))) console.log(`written: ${path}`);
  for (const line of absences()) console.error(line);
}
