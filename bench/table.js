// The form of what benchmarks return.
const STATISTICS = ['n', 'median', 'low', 'high', 'p99'];

/** @throws naming the first table that doesn't have the agreed form: a typing error must not become a missing figure */
export function checkTables(tables) {
  if (!Array.isArray(tables)) throw new Error('a benchmark must return an array of tables');
  const names = new Set();
  for (const table of tables) {
    const bad = (what) => new Error(`table '${table?.name}': ${what}`);
    for (const member of ['name', 'title', 'unit']) {
      if (typeof table?.[member] !== 'string') throw bad(`'${member}' is missing`);
    }
    if (names.has(table.name)) throw bad('there are two of that name');
    names.add(table.name);
    if (!Array.isArray(table.rows) || table.rows.length === 0) throw bad('it has no rows');
    for (const row of table.rows) checkRow(row, bad);
    if (table.base !== undefined && !seriesOf(table).includes(table.base)) {
      throw bad(`its base '${table.base}' is no series`);
    }
    for (const { text, value, met } of table.targets ?? []) {
      if (typeof text !== 'string' || !Number.isFinite(value) || typeof met !== 'boolean') {
        throw bad(`a target needs text, value and met: '${text}'`);
      }
    }
  }
}

function checkRow(row, bad) {
  if (typeof row.label !== 'string') throw bad('a row has no label');
  const series = Object.entries(row.series ?? {});
  if (series.length === 0) throw bad(`row '${row.label}' has no series`);
  for (const [name, summary] of series) {
    const missing = STATISTICS.find((statistic) => !Number.isFinite(summary?.[statistic]));
    if (missing !== undefined) throw bad(`row '${row.label}', series '${name}' has no ${missing}`);
  }
}

/** The names of all series, in order of appearance. */
export function seriesOf(table) {
  return [...new Set(table.rows.flatMap(({ series }) => Object.keys(series)))];
}

/** The ratio of a series to the base in the same row; null where there is none, and for the base itself. */
export function ratio(table, row, series) {
  const base = row.series[table.base];
  if (base === undefined || series === table.base || row.series[series] === undefined) return null;
  return base.median === 0 ? null : row.series[series].median / base.median;
}
