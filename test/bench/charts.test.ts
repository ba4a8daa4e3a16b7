import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { linearTicks, logTicks } from '../../bench/axis-ticks.js';
import { chart } from '../../bench/chart.js';
import { summarize } from '../../bench/measure.js';

type Series = Record<string, ReturnType<typeof summarize>>;

function table(more: object, rows: { label: string; x?: number; series: Series }[]) {
  return { name: 'warm', title: 'Warm & cold <looks>', unit: 'us', chart: 'lines', rows, ...more };
}

const over = (...values: number[][]) => ({
  C: summarize(values[0] as number[]),
  'gpu-owner': summarize(values[1] as number[]),
});
const rows = [
  { label: '1 GPU', x: 1, series: over([1, 2, 3], [10, 11, 12]) },
  { label: '8 GPUs', x: 8, series: over([8, 9, 10], [90, 100, 110]) },
];
const kinds = [
  ['lines', table({ base: 'C' }, rows)],
  ['lines, logarithmic', table({ base: 'C', scale: 'log' }, rows)],
  ['bars', table({ chart: 'bars' }, rows)],
  ['bars, logarithmic', table({ chart: 'bars', scale: 'log', note: 'a "note" '.repeat(100) }, rows)],
  ['bars of one row', table({ chart: 'bars' }, rows.slice(0, 1))],
  ['nothing but zeros', table({ scale: 'log' }, [{ label: '0', x: 0, series: over([0], [0]) }])],
] as const;

/** Elements by name, with their attributes; fails for anything that isn't closed or escaped. */
function elements(svg: string) {
  const found: { name: string; attributes: Record<string, string> }[] = [];
  const open: string[] = [];
  const rest = svg.replace(
    /<(\/?)([a-z]+)((?: [a-zA-Z0-9-]+="[^"<&]*(?:&(?:amp|lt|gt|quot);[^"<&]*)*")*) ?(\/?)>/g,
    (...match) => {
      const [, end, name, attributes, empty] = match as unknown as string[];
      if (end) expect(open.pop()).toBe(name);
      else {
        const pairs = [...(attributes as string).matchAll(/([a-zA-Z0-9-]+)="([^"]*)"/g)];
        found.push({
          name: name as string,
          attributes: Object.fromEntries(pairs.map(([, key, value]) => [key, value])),
        });
        if (!empty) open.push(name as string);
      }
      return '';
    },
  );
  expect(open).toEqual([]);
  expect(rest.replace(/&(amp|lt|gt|quot);/g, '')).not.toMatch(/[<>&]/);
  return found;
}

describe.each(kinds)('%s', (_, each) => {
  const svg = chart('A look', each, 'Measured somewhere');

  test('is well formed, within its frame, and without a number that is none', () => {
    expect(svg).not.toMatch(/NaN|Infinity|undefined/);
    const [frame, ...all] = elements(svg);
    const [width, height] = [Number(frame?.attributes.width), Number(frame?.attributes.height)];
    expect(frame?.attributes.viewBox).toBe(`0 0 ${width} ${height}`);
    for (const { attributes } of all) {
      for (const name of ['x', 'x1', 'x2', 'cx']) {
        const value = Number(attributes[name] ?? 0);
        expect(value >= 0 && value <= width, `${name}=${value}`).toBe(true);
      }
      for (const name of ['y', 'y1', 'y2', 'cy']) {
        const value = Number(attributes[name] ?? 0);
        expect(value >= 0 && value <= height, `${name}=${value}`).toBe(true);
      }
    }
  });

  test('is told in words, with units, for light and dark', () => {
    expect(svg).toContain('<title id="title">A look: Warm &amp; cold &lt;looks&gt;</title>');
    expect(svg).toMatch(/<desc id="desc">Medians in µs\..+gpu-owner/);
    expect(svg).toMatch(/>µs(, logarithmic scale)?<\/text>/);
    expect(svg).toContain('prefers-color-scheme: dark');
    expect(svg).not.toMatch(/(href|src)=|url\(|@import/);
  });
});

test('a chart is valid SVG', ({ skip }) => {
  if (spawnSync('rsvg-convert', ['--version']).status !== 0) skip('rsvg-convert is not installed');
  for (const [, each] of kinds) {
    const { status, stdout } = spawnSync('rsvg-convert', {
      input: chart('A look', each, 'Measured somewhere'),
    });
    expect(status).toBe(0);
    expect(stdout.subarray(1, 4).toString()).toBe('PNG');
  }
});

describe('ticks', () => {
  test.each([
    [0, 97, ['0', '20', '40', '60', '80', '100']],
    [0, 4.2, ['0', '1', '2', '3', '4', '5']],
    [0, 0.013, ['0', '0.005', '0.01', '0.015']],
    [-3, 5, ['-4', '-2', '0', '2', '4', '6']],
  ])('axis ticks from %d to %d are round and cover the values', (from, to, labels) => {
    expect(linearTicks(from, to).ticks.map(({ label }) => label)).toEqual(labels);
  });

  test('logarithmic axes have all ticks over a short range, and powers of ten over a long one', () => {
    const labels = (from: number, to: number) => logTicks(from, to).ticks.map(({ label }) => label);
    expect(labels(3, 150)).toEqual(['2', '5', '10', '20', '50', '100', '200']);
    expect(labels(3, 9000).filter(Boolean)).toEqual(['10', '100', '1,000', '10,000']);
    expect(labels(0.02, 0.4)).toEqual(['0.01', '0.02', '0.05', '0.1', '0.2', '0.5']);
    expect(labels(5, 5)).toEqual(['2', '5', '10']);
  });
});
