// Charts of tables, as SVG: readable on light and dark pages (a panel of its own, colours by what the reader's system prefers),
// with no font but the reader's, and told to those who can't see them (title, desc).

import { linearTicks, logTicks } from './axis-ticks.js';
import { number, unitName } from './numbers.js';
import { seriesOf } from './table.js';

const WIDTH = 760;
const SIZE = 13; // the size of text
const NOTE_LINES = 2; // the page has the whole note, beside the table

/** For what is neither the base, which is grey, nor gpu-owner, which has a colour of its own. Lines differ in their dashes, too. */
const LOOKS = [
  { name: 'a', dash: '' },
  { name: 'b', dash: '7 4' },
  { name: 'c', dash: '2 4' },
  { name: 'd', dash: '9 3 2 3' },
  { name: 'e', dash: '4 2' },
];

const STYLE = `
  text { font: ${SIZE}px system-ui, -apple-system, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .soft { fill: #59636e; }
  .panel { fill: #ffffff; stroke: #d1d9e0; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .fine { stroke-dasharray: 2 3; }
  .axis { stroke: #818b98; stroke-width: 1.2; }
  .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
  .band { stroke: none; opacity: 0.16; }
  .whisker { stroke: #1f2328; stroke-width: 1.2; fill: none; }
  .value { stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
  .stroke-gpu-owner { stroke: #0969da; } .fill-gpu-owner { fill: #0969da; }
  .stroke-base { stroke: #6e7781; } .fill-base { fill: #6e7781; }
  .stroke-a { stroke: #bc4c00; } .fill-a { fill: #bc4c00; }
  .stroke-b { stroke: #1a7f37; } .fill-b { fill: #1a7f37; }
  .stroke-c { stroke: #8250df; } .fill-c { fill: #8250df; }
  .stroke-d { stroke: #bf3989; } .fill-d { fill: #bf3989; }
  .stroke-e { stroke: #9a6700; } .fill-e { fill: #9a6700; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .soft { fill: #9198a1; }
    .panel { fill: #0d1117; stroke: #3d444d; }
    .grid { stroke: #3d444d; }
    .axis { stroke: #9198a1; }
    .band { opacity: 0.26; }
    .whisker { stroke: #f0f6fc; }
    .value { stroke: #0d1117; }
    .stroke-gpu-owner { stroke: #4493f8; } .fill-gpu-owner { fill: #4493f8; }
    .stroke-base { stroke: #9198a1; } .fill-base { fill: #9198a1; }
    .stroke-a { stroke: #f0883e; } .fill-a { fill: #f0883e; }
    .stroke-b { stroke: #3fb950; } .fill-b { fill: #3fb950; }
    .stroke-c { stroke: #ab7df8; } .fill-c { fill: #ab7df8; }
    .stroke-d { stroke: #f778ba; } .fill-d { fill: #f778ba; }
    .stroke-e { stroke: #d29922; } .fill-e { fill: #d29922; }
  }
`;

/** @param footer where and when it was measured. @returns the text of an SVG file */
export function chart(heading, table, footer) {
  const looks = looksOf(table);
  const top = head(heading, table, looks);
  const drawn = table.chart === 'lines' ? lines(table, looks, top.bottom) : bars(table, looks, top.bottom);
  const foot = broken(footer, WIDTH - 40, 11);
  const height = Math.ceil(drawn.bottom + 16 + 15 * foot.length);
  const footMarks = foot.map((line, i) =>
    text(20, height - 12 - 15 * (foot.length - 1 - i), line, { class: 'soft', size: 11 }),
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="title desc">
<title id="title">${escaped(`${heading}: ${table.title}`)}</title>
<desc id="desc">${escaped(inWords(table))}</desc>
<style>${STYLE}</style>
<rect class="panel" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="6"/>
${[...top.marks, ...drawn.marks, ...footMarks].join('\n')}
</svg>
`;
}

const isOurs = (name) => name.startsWith('gpu-owner');
const hasLegend = (table) =>
  seriesOf(table).length > 1 && !(table.chart === 'bars' && table.rows.length === 1);

function looksOf(table) {
  const names = seriesOf(table);
  if (!hasLegend(table)) {
    // Each bar has its name beside it.
    const look = (name) => ({ name: isOurs(name) || names.length === 1 ? 'gpu-owner' : 'base', dash: '' });
    return new Map(names.map((name) => [name, look(name)]));
  }
  const ours = names.find((name) => name === 'gpu-owner') ?? names.find(isOurs);
  const others = names.filter((name) => name !== table.base && name !== ours);
  const look = (name) => {
    if (name === ours) return { name: 'gpu-owner', dash: '' };
    return name === table.base ? { name: 'base', dash: '' } : LOOKS[others.indexOf(name) % LOOKS.length];
  };
  return new Map(names.map((name) => [name, look(name)]));
}

function head(heading, table, looks) {
  const marks = [];
  let y = 30;
  for (const line of broken(`${heading}: ${table.title}`, WIDTH - 40, 15.5)) {
    marks.push(text(20, y, line, { class: 'title' }));
    y += 20;
  }
  for (const line of shortened(
    broken((table.note ?? '').replaceAll('`', ''), WIDTH - 40, SIZE),
    NOTE_LINES,
  )) {
    if (line !== '') marks.push(text(20, y, line, { class: 'soft' }));
    y += line === '' ? 0 : 18;
  }
  if (hasLegend(table)) {
    let x = 20;
    y += 6;
    for (const name of seriesOf(table)) {
      const width = 30 + textWidth(name, SIZE) + 24;
      if (x > 20 && x + width > WIDTH - 10) {
        x = 20;
        y += 20;
      }
      const look = looks.get(name);
      marks.push(table.chart === 'lines' ? sample(x, y - 4, look) : box(x, y - 10, 22, 12, look));
      marks.push(text(x + 30, y, name));
      x += width;
    }
    y += 12;
  }
  return { marks, bottom: y };
}

const sample = (x, y, look) =>
  `<path class="line stroke-${look.name}" stroke-dasharray="${look.dash}" d="M${x} ${y}h24"/>${dot(x + 12, y, look)}`;
const box = (x, y, width, height, look) =>
  `<rect class="fill-${look.name}" x="${r(x)}" y="${r(y)}" width="${r(width)}" height="${r(height)}" rx="2"/>`;
const dot = (x, y, look, size = 3.6) =>
  `<circle class="fill-${look.name}" cx="${r(x)}" cy="${r(y)}" r="${size}"/>`;

/** Over x: medians, with the middle half as a band. */
function lines(table, looks, top) {
  const rows = [...table.rows].sort((a, b) => a.x - b.x);
  const all = rows.flatMap(({ series }) => Object.values(series));
  const logarithmic = table.scale === 'log';
  const axis = scale(
    all.flatMap(({ low, high, median }) => [low, high, median]),
    logarithmic,
  );
  const plot = { left: 74, right: WIDTH - 36, top: top + 34, bottom: top + 34 + 270 };
  const y = (value) => plot.bottom - axis.at(value) * (plot.bottom - plot.top);
  const across = horizontal(rows.map((row) => row.x));
  const x = (value) => plot.left + 14 + across(value) * (plot.right - plot.left - 28);
  const marks = [text(20, top + 16, axisName(table), { class: 'soft' })];
  for (const { value, label } of axis.ticks) {
    marks.push(rule(plot.left, y(value), plot.right, y(value), label === '' ? 'grid fine' : 'grid'));
    if (label !== '')
      marks.push(text(plot.left - 8, y(value) + 4.5, label, { anchor: 'end', class: 'soft' }));
  }
  marks.push(rule(plot.left, plot.bottom, plot.right, plot.bottom, 'axis'));
  for (const row of rows) {
    marks.push(rule(x(row.x), plot.bottom, x(row.x), plot.bottom + 5, 'axis'));
    marks.push(
      text(x(row.x), plot.bottom + 20, row.x.toLocaleString('en-US'), { anchor: 'middle', class: 'soft' }),
    );
  }
  const name = horizontalName(rows);
  if (name !== '')
    marks.push(
      text((plot.left + plot.right) / 2, plot.bottom + 40, name, { anchor: 'middle', class: 'soft' }),
    );
  for (const series of seriesOf(table)) {
    const look = looks.get(series);
    const points = rows
      .filter((row) => row.series[series])
      .map((row) => ({ x: x(row.x), ...row.series[series] }));
    const upper = points.map((point) => `${r(point.x)} ${r(y(point.high))}`);
    const lower = points.map((point) => `${r(point.x)} ${r(y(point.low))}`).reverse();
    marks.push(`<path class="band fill-${look.name}" d="M${[...upper, ...lower].join('L')}Z"/>`);
    const path = points.map((point) => `${r(point.x)} ${r(y(point.median))}`).join('L');
    marks.push(`<path class="line stroke-${look.name}" stroke-dasharray="${look.dash}" d="M${path}"/>`);
    for (const point of points) marks.push(dot(point.x, y(point.median), look));
  }
  return { marks, bottom: plot.bottom + (name === '' ? 28 : 48) };
}

/** A bar per row and series. On a logarithmic scale, where a bar's length would mean nothing, a dot. */
function bars(table, looks, top) {
  const all = table.rows.flatMap(({ series }) => Object.values(series));
  const logarithmic = table.scale === 'log';
  const axis = scale(
    all.flatMap(({ low, high, median }) => [low, high, median]),
    logarithmic,
  );
  const groups = barGroups(table);
  const space = Math.min(250, Math.max(...groups.map(({ label }) => textWidth(label, SIZE))) + 12);
  const valueSpace = Math.max(...all.map(({ median }) => textWidth(number(median), SIZE))) + 14;
  const plot = { left: 20 + space, right: WIDTH - 24 - valueSpace, top: top + 30 };
  const x = (value) => plot.left + axis.at(value) * (plot.right - plot.left);
  const marks = [];
  let y = plot.top + GAP;
  for (const { label, members } of groups) {
    const words = broken(label, space - 8, SIZE);
    const height = members.length * (THICK + BETWEEN) - BETWEEN;
    const below = Math.max(0, words.length * 15 - height) / 2;
    words.forEach((line, i) => {
      const middle = y + below + height / 2 + 4.5 + (i - (words.length - 1) / 2) * 15;
      marks.push(text(plot.left - 8, middle, line, { anchor: 'end' }));
    });
    y += below;
    for (const [series, summary] of members) {
      marks.push(...bar(summary, looks.get(series), { y, left: plot.left, x, logarithmic }));
      y += THICK + BETWEEN;
    }
    y += below - BETWEEN + GAP;
  }
  const under = axis.ticks.flatMap(({ value, label }) => [
    rule(x(value), plot.top, x(value), y, label === '' ? 'grid fine' : 'grid'),
    ...(label === '' ? [] : [text(x(value), plot.top - 7, label, { anchor: 'middle', class: 'soft' })]),
  ]);
  const name = text(plot.right, y + 20, axisName(table), { anchor: 'end', class: 'soft' });
  const base = rule(plot.left, plot.top, plot.left, y, 'axis');
  return { marks: [...under, base, ...marks, name], bottom: y + 26 };
}

const [THICK, BETWEEN, GAP] = [18, 3, 14];

/** Names the bars: by series where there is a single row, else those of a row stand together. */
function barGroups({ rows }) {
  if (rows.length > 1) return rows.map(({ label, series }) => ({ label, members: Object.entries(series) }));
  const members = Object.entries(rows[0].series);
  return members.map((member) => ({ label: member[0], members: [member] }));
}

function bar({ n, median, low, high }, look, { y, left, x, logarithmic }) {
  const middle = y + THICK / 2;
  const end = x(median);
  const marks = logarithmic
    ? [rule(left, middle, end, middle, 'grid fine'), dot(end, middle, look, 5)]
    : [box(left, y, Math.max(1, end - left), THICK, look)];
  const half = x(high) - x(low);
  if (n > 1 && half > (logarithmic ? 11 : 2)) {
    const [from, to, top] = [r(x(low)), r(x(high)), r(middle - 3.5)];
    marks.push(`<path class="whisker" d="M${from} ${top}v7M${from} ${r(middle)}H${to}M${to} ${top}v7"/>`);
  }
  const after = Math.max(end + (logarithmic ? 5 : 0), n > 1 ? x(high) : 0) + 6;
  return [...marks, text(after, middle + 4.5, number(median), { class: 'value' })];
}

/** From values to 0 … 1, and its ticks. Linear scales begin at 0: a difference must not look larger than it is. */
function scale(values, logarithmic) {
  const positive = values.filter((value) => value > 0);
  if (logarithmic && positive.length > 0) {
    const { low, high, ticks } = logTicks(Math.min(...positive), Math.max(...positive));
    const at = (value) => Math.max(0, Math.log(value / low) / Math.log(high / low));
    return { at: (value) => (value > 0 ? at(value) : 0), ticks };
  }
  const { low, high, ticks } = linearTicks(Math.min(0, ...values), Math.max(0, ...values));
  return { at: (value) => (value - low) / (high - low), ticks };
}

/** Where x spans more than a decade, its distances are those of logarithms, with room for a zero. */
function horizontal(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const least = Math.min(...values.filter((value) => value > 0));
  if (low < 0 || high / least <= 12) return (value) => (high === low ? 0.5 : (value - low) / (high - low));
  const steps = new Set(values).size - 1;
  const zero = low === 0 ? 1 / steps : 0; // as far away as the others are from each other
  return (value) =>
    value === 0 ? 0 : zero + ((1 - zero) * Math.log(value / least)) / Math.log(high / least);
}

/** The words that all labels have beside their numbers: '1 GPU', '8 GPUs' -> 'GPUs', 'up to 8 rows' -> 'up to … rows'. */
function horizontalName(rows) {
  const numbered = rows.filter(({ label }) => /\d/.test(label));
  const names = new Set(numbered.map(({ label }) => label.replace(/[\d.,]+/, '…').replace(/^… /, '')));
  const plurals = [...names].filter((name) => ![...names].some((other) => other === `${name}s`));
  return plurals.length === 1 ? plurals[0] : '';
}

function axisName(table) {
  return `${unitName(table.unit)}${table.scale === 'log' ? ', logarithmic scale' : ''}`;
}

function inWords(table) {
  const rows = table.rows.map((row) => {
    const values = Object.entries(row.series).map(([name, { median }]) => `${name} ${number(median)}`);
    return `${row.label}: ${values.join(', ')}`;
  });
  return `Medians in ${unitName(table.unit)}. ${rows.join('; ')}.`;
}

const rule = (x1, y1, x2, y2, name) =>
  `<line class="${name}" x1="${r(x1)}" y1="${r(y1)}" x2="${r(x2)}" y2="${r(y2)}"/>`;

function text(x, y, content, { class: name = '', anchor = '', size } = {}) {
  const attributes = [
    name && `class="${name}"`,
    anchor && `text-anchor="${anchor}"`,
    size && `style="font-size:${size}px"`,
  ];
  return `<text x="${r(x)}" y="${r(y)}" ${attributes.filter(Boolean).join(' ')}>${escaped(content)}</text>`;
}

const r = (value) => Number(value.toFixed(1));

/** About what fonts without serifs take: readers' fonts differ. */
function textWidth(content, size) {
  let width = 0;
  for (const character of content) {
    if (/[ijl.,:;'|!]/.test(character)) width += 0.27;
    else if (/[ ftr()[\]/-]/.test(character)) width += 0.34;
    else if (/[mwMW%@×]/.test(character)) width += 0.86;
    else width += /[A-Z]/.test(character) ? 0.69 : 0.57;
  }
  return width * size;
}

/** Words that are longer than a line are broken. */
function broken(content, width, size) {
  const lines = [''];
  for (const word of content.split(' ')) {
    const longer = lines.at(-1) === '' ? word : `${lines.at(-1)} ${word}`;
    if (textWidth(longer, size) <= width) lines[lines.length - 1] = longer;
    else {
      if (lines.at(-1) !== '') lines.push('');
      for (const character of word) {
        if (textWidth(lines.at(-1) + character, size) > width) lines.push('');
        lines[lines.length - 1] += character;
      }
    }
  }
  return lines;
}

function shortened(lines, count) {
  if (lines.length <= count) return lines;
  return [...lines.slice(0, count - 1), `${lines[count - 1].replace(/ \S*$/, '')} …`];
}

function escaped(content) {
  return content.replace(
    /[&<>"]/g,
    (character) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[character],
  );
}
