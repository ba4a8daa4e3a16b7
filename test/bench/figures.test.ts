// The documentation quotes the figures of docs/benchmarks/results.json.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { documentation, fill, markdown } from '../../bench/docs.js';
import { summarize } from '../../bench/measure.js';

const root = join(import.meta.dirname, '../..');
const results = JSON.parse(readFileSync(join(root, 'docs/benchmarks/results.json'), 'utf8'));

describe('the documentation', () => {
  const files = documentation(results);

  test.each([...files.keys()])('is as `node bench/docs.js` writes it: %s', (path) => {
    expect(existsSync(join(root, path)) && readFileSync(join(root, path), 'utf8')).toBe(files.get(path));
  });

  test('has no other chart', () => {
    const charts = readdirSync(join(root, 'docs/benchmarks')).filter((name) => name.endsWith('.svg'));
    expect(charts.map((name) => `docs/benchmarks/${name}`).filter((path) => !files.has(path))).toEqual([]);
  });

  test('rests on one full run without failures', () => {
    expect(results.quick).toBe(false);
    expect(results.date).toMatch(/^\d{4}-\d\d-\d\dT/);
    expect(results.machine.processor).not.toBe('');
    for (const { error } of Object.values<{ error?: string }>(results.benchmarks))
      expect(error).toBeUndefined();
  });

  test('quotes figures on other pages than that of the benchmarks', () => {
    const quoting = markdown().filter(({ content }) => content.includes('<!-- figure: '));
    expect(quoting.map(({ path }) => path)).not.toEqual([]);
  });
});

describe('a page', () => {
  const example = {
    ...results,
    date: '2026-01-02T03:04:05.000Z',
    benchmarks: {
      look: {
        title: 'A look',
        question: 'How long?',
        leftOut: [{ what: 'nvidia-smi', why: 'it is not installed' }],
        tables: [
          {
            name: 'warm',
            title: 'Warm',
            unit: 'us',
            base: 'C',
            rows: [{ label: '8 GPUs', x: 8, series: { C: summarize([2]), ours: summarize([5, 5, 6]) } }],
            targets: [
              { text: 'below 4', value: 5, limit: 4, met: false },
              { text: 'below 9', value: 5, limit: 9, met: true },
            ],
            chart: 'bars',
          },
        ],
      },
    },
  };
  const filled = (content: string) => fill(content, example, new Set(), 'docs/page.md');
  const figure = (name: string) => filled(`a <!-- figure: ${name} -->old<!-- end --> b`);

  test('quotes medians, differences, ratios and other statistics', () => {
    expect(figure('look / warm / 8 GPUs / ours')).toBe(
      'a <!-- figure: look / warm / 8 GPUs / ours -->5.00 µs<!-- end --> b',
    );
    expect(figure('look / warm / 8 GPUs / ours over C')).toContain('>3.00 µs<');
    expect(figure('look / warm / 8 GPUs / ours to C')).toContain('>2.50×<');
    expect(figure('look / warm / 8 GPUs / ours / p99')).toContain('>6.00 µs<');
    expect(figure('date')).toContain('>2026-01-02<');
  });

  test.each([
    ['look / cold / 8 GPUs / ours', /there is no table 'cold'/],
    ['none / warm / 8 GPUs / ours', /of 'none'/],
    ['look / warm / 9 GPUs / ours', /rows are '8 GPUs'/],
    ['look / warm / 8 GPUs / theirs', /there is no series 'theirs'; there are C, ours/],
    ['look / warm / 8 GPUs / ours over D', /no median of 'D'/],
    ['look / warm / 8 GPUs / ours / p50', /no p50/],
    ['look / warm / 8 GPUs', /a series is missing/],
  ])('that quotes what was not measured is an error: %s', (name, message) => {
    expect(() => figure(name)).toThrow(message);
    expect(() => figure(name)).toThrow('docs/page.md');
  });

  test('a page whose comments do not end is an error', () => {
    expect(() => filled('on <!-- figure: date -->2026')).toThrow('1 figures begin, but 0 are complete');
    expect(() => filled('<!-- figures: look -->\n')).toThrow('begin');
  });

  test('with a figure that Markdown would take for a block is an error', () => {
    expect(() => filled('on\n  <!-- figure: date -->2026<!-- end -->')).toThrow(
      'docs/page.md: a figure is first on its line',
    );
  });

  test('has tables, targets and charts of a benchmark', () => {
    const text = filled('<!-- figures: look -->\nold\n<!-- end of figures -->\n');
    expect(text).toContain(
      '|  | 8 GPUs |\n|---|---:|\n| C | **2.00** |\n| ours | **5.00** (5.00 to 6.00), 2.50× |',
    );
    expect(text).toContain('- **missed**: below 4: 5.00\n- met: below 9: 5.00');
    expect(text).toContain('](benchmarks/look-warm.svg)');
    expect(text).not.toContain('old');
    expect(filled(text)).toBe(text);
  });

  test('lists targets, what was left out, and benchmarks without a place of their own', () => {
    const block = (name: string) => filled(`<!-- figures: ${name} -->\n<!-- end of figures -->`);
    expect(block('targets')).toContain('| A look | below 4 | 5.00 | **missed** |');
    expect(block('left out')).toContain('- A look: nvidia-smi. Why: it is not installed.');
    expect(block('rest')).toContain('## A look\n\nHow long?\n\n**Warm**, in µs');
    expect(block('unheard of')).toContain('Not measured');
  });
});
