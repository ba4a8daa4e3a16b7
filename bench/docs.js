// Brings figures and charts of the documentation in line with one run of all benchmarks, docs/benchmarks/results.json.
//   node bench/docs.js            from these results
//   node bench/docs.js RESULTS    from others, which take their place: what `npm run bench -- --docs` does at its end
//
// In pages, figures stand between comments, which readers don't see:
//   <!-- figures: idle -->                     a block: tables, charts and targets of a benchmark; or `conditions`, `targets`,
//   <!-- end of figures -->                    `left out`, and `rest` for benchmarks without a block of their own
//   <!-- figure: experiments / status / 100,000 tasks / exp status over node -e 0 -->19 ms<!-- end -->
//                                              a median, by benchmark, table, row and series; `A over B` is a difference,
//                                              `A to B` a ratio; ` / p99` after the series takes another statistic
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { chart } from './chart.js';
import { machineText } from './machine.js';
import { amount, duration, number, times, unitName } from './numbers.js';
import { wrap } from './print.js';
import { ratio, seriesOf } from './table.js';

const root = dirname(import.meta.dirname);
const directory = join(root, 'docs/benchmarks');
const BLOCK = /(<!-- figures: (.+?) -->\n)[\s\S]*?(<!-- end of figures -->)/g;
const ABSENT = '*Not measured in this run.*';
const COLUMNS = 120;
const FIGURE = /(<!-- figure: (.+?) -->)(.*?)(<!-- end -->)/g;

/** Renders the documentation for these results. @returns path below the repository's root -> content */
export function documentation(results) {
  const files = new Map([['docs/benchmarks/results.json', `${JSON.stringify(rounded(results), null, 1)}\n`]]);
  const read = JSON.parse(files.get('docs/benchmarks/results.json'));
  for (const { path, content } of charts(read)) files.set(path, content);
  const pages = markdown();
  const own = new Set(pages.flatMap(({ content }) => [...content.matchAll(BLOCK)].map(([, , name]) => name)));
  for (const { path, content } of pages) {
    if (content.includes('<!-- figure')) files.set(path, fill(content, read, own, path));
  }
  return files;
}

/** @returns the files that changed, below the repository's root */
export function writeDocs(results) {
  mkdirSync(directory, { recursive: true });
  const files = documentation(results);
  for (const name of readdirSync(directory)) {
    if (name.endsWith('.svg') && !files.has(`docs/benchmarks/${name}`)) rmSync(join(directory, name));
  }
  const changed = [...files].filter(([path, content]) => {
    const file = join(root, path);
    return !existsSync(file) || readFileSync(file, 'utf8') !== content;
  });
  for (const [path, content] of changed) writeFileSync(join(root, path), content);
  return changed.map(([path]) => path);
}

/** Finds the places in pages that have no figures. */
export function absences() {
  return markdown().flatMap(({ path, content }) =>
    [...content.matchAll(BLOCK)]
      .filter(([text]) => text.includes(ABSENT))
      .map(([, , name]) => `${path}: '${name}' is not in these results`),
  );
}

/** All pages for users that may quote figures. */
export function markdown() {
  const paths = ['README.md', 'CONTRIBUTING.md'];
  for (const name of readdirSync(join(root, 'docs'))) if (name.endsWith('.md')) paths.push(`docs/${name}`);
  return paths.map((path) => ({ path, content: readFileSync(join(root, path), 'utf8') }));
}

/** A page with its figures. @param own the names of blocks that pages have @param path for messages and links */
export function fill(content, results, own, path) {
  const complete = [...content.matchAll(BLOCK), ...content.matchAll(FIGURE)].length;
  const begun = content.split('<!-- figure').length - 1;
  // Markdown would take the whole line for HTML.
  if (/^ *<!-- figure: /m.test(content)) throw new Error(`${path}: a figure is first on its line`);
  if (begun !== complete) throw new Error(`${path}: ${begun} figures begin, but ${complete} are complete`);
  return content
    .replace(BLOCK, (_, begin, name, end) => `${begin}${block(name, results, own, path)}\n${end}`)
    .replace(FIGURE, (_, begin, name, _old, end) => `${begin}${figure(name, results, path)}${end}`);
}

function block(name, results, own, path) {
  if (name === 'conditions') return conditions(results);
  if (name === 'targets') return targets(results);
  if (name === 'left out') return leftOut(results);
  if (name === 'rest') {
    const rest = Object.entries(results.benchmarks).filter(([each]) => !own.has(each));
    return rest
      .map(
        ([each, { title, question }]) =>
          `## ${title}\n\n${broken(question)}\n\n${section(each, results, path)}`,
      )
      .join('\n\n');
  }
  return section(name, results, path);
}

function section(name, results, path) {
  const benchmark = results.benchmarks[name];
  if (benchmark === undefined) return ABSENT;
  const parts = benchmark.tables.flatMap((table) => {
    const drawn = table.chart === undefined ? [] : [image(name, table, path)];
    return [heading(table), markdownTable(table), ...targetList(table), ...drawn];
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

function image(name, table, path) {
  const file = relative(dirname(path), chartPath(name, table));
  return `![${table.title.replace(/[[\]]/g, '')}: the table above as a chart](${file})`;
}

function charts(results) {
  const footer = `Medians, with the middle half of the values. ${results.date.slice(0, 10)}, ${machineText(results.machine)}`;
  return Object.entries(results.benchmarks).flatMap(([name, { title, tables }]) =>
    tables
      .filter((table) => table.chart !== undefined)
      .map((table) => ({ path: chartPath(name, table), content: chart(title, table, footer) })),
  );
}

function chartPath(name, table) {
  const slug = `${name}-${table.name}`.toLowerCase().replace(/[^a-z0-9]+/g, '-');
  return `docs/benchmarks/${slug}.svg`;
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

function figure(name, results, path) {
  const fail = (what) => new Error(`${path}: figure '${name}': ${what}`);
  if (name === 'date') return results.date.slice(0, 10);
  if (name === 'machine') return machineText(results.machine);
  const [benchmark, tableName, label, series, statistic = 'median'] = name.split(' / ');
  const table = results.benchmarks[benchmark]?.tables.find((each) => each.name === tableName);
  if (table === undefined) throw fail(`there is no table '${tableName}' of '${benchmark}'`);
  const row = table.rows.find((each) => each.label === label);
  if (row === undefined) throw fail(`rows are ${table.rows.map((each) => `'${each.label}'`).join(', ')}`);
  const value = (wanted) => {
    const found = row.series[wanted]?.[statistic];
    if (found === undefined)
      throw fail(`no ${statistic} of '${wanted}'; there are ${Object.keys(row.series).join(', ')}`);
    return found;
  };
  if (series === undefined) throw fail('a series is missing');
  if (row.series[series] !== undefined) return amount(value(series), table.unit);
  const [, first, how, second] = /^(.*) (over|to) (.*)$/.exec(series) ?? [];
  if (how === 'over') return amount(value(first) - value(second), table.unit);
  if (how === 'to') return `${times(value(first) / value(second))}×`;
  throw fail(`there is no series '${series}'; there are ${Object.keys(row.series).join(', ')}`);
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
