// The documentation quotes the figures of docs/benchmarks/results.json.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { documentation, fill } from '../../bench/docs.js';
import { summarize } from '../../bench/measure.js';

const root = join(import.meta.dirname, '../..');
const results = JSON.parse(readFileSync(join(root, 'docs/benchmarks/results.json'), 'utf8'));

describe('the documentation', () => {
  const files = documentation(results);

  test.each([...files.keys()])('is as `node bench/docs.js` writes it: %s', (path) => {
    expect(existsSync(join(root, path)) && readFileSync(join(root, path), 'utf8')).toBe(files.get(path));
  });

  test('rests on one full run without failures', () => {
    expect(results.quick).toBe(false);
    expect(results.date).toMatch(/^\d{4}-\d\d-\d\dT/);
    expect(results.machine.processor).not.toBe('');
    for (const { error } of Object.values<{ error?: string }>(results.benchmarks))
      expect(error).toBeUndefined();
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
          },
        ],
      },
    },
  };
  const filled = (content: string) => fill(content, example);

  test('a page whose comments do not end is an error', () => {
    expect(() => filled('<!-- figures: look -->\n')).toThrow('1 figures begin, but 0 are complete');
  });

  test('has tables and targets of a benchmark', () => {
    const text = filled('<!-- figures: look -->\nold\n<!-- end of figures -->\n');
    expect(text).toContain(
      '|  | 8 GPUs |\n|---|---:|\n| C | **2.00** |\n| ours | **5.00** (5.00 to 6.00), 2.50× |',
    );
    expect(text).toContain('- **missed**: below 4: 5.00\n- met: below 9: 5.00');
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
