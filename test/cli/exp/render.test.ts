import { expect, test } from 'vitest';
import { render } from '../../../lib/cli/exp/render.ts';
import type { RunView } from '../../../lib/sweeps/control/experiment.ts';
import { Eta } from '../../../lib/sweeps/progress/progress.ts';

function view(active: number, changes: Partial<RunView> = {}): RunView {
  const counts = { pending: 191, active, completed: 43, failed: 2, cancelled: 0 };
  const eta = new Eta(0, 0);
  eta.note(60_000, 45);
  return {
    progress: {
      counts,
      total: 240,
      completed: 43,
      ended: 45,
      running: [],
      manager: null,
      pause: null,
      nextTime: null,
    },
    eta,
    best: null,
    failures: [{ name: 'exp1_7_42', error: 'exit code 1: \u001b[31mno good\u001b[0m\nmore' }],
    notes: [],
    ...changes,
  };
}

const STYLE = { columns: 80, rows: 24, colour: false, unicode: false };

test('the display shows progress and failures', () => {
  expect(render(view(2), 65_000, STYLE)).toBe(
    [
      '#####-------------------------  43/240 (17.9%)  41.5 tasks/min  4 min 41 s left',
      '43 completed, 2 failed, 2 running, 191 waiting',
      'last failures',
      '  exp1_7_42: exit code 1: no good more',
    ].join('\n'),
  );
});

test.each([10, 20, 30, 41, 60, 79, 80, 81, 200])('the display fits %i columns', (columns) => {
  const long = view(3, {
    notes: ['paused: '.repeat(30)],
    failures: [
      { name: 'x'.repeat(200), error: 'y'.repeat(500) },
      { name: 'z', error: '\u4e2d'.repeat(100) },
    ],
  });
  for (const line of render(long, 1e9, { ...STYLE, columns, unicode: true }).split('\n')) {
    const width = Array.from(line).reduce((sum, character) => sum + (character === '\u4e2d' ? 2 : 1), 0);
    expect(width).toBeLessThan(Math.max(columns, 20));
  }
});

test.each([2, 3, 5, 8, 12])('%i rows are never exceeded, and the bar is always there', (rows) => {
  const lines = render(view(16), 65_000, { ...STYLE, rows }).split('\n');
  expect(lines.length).toBeLessThan(rows);
  expect(lines[0]).toMatch(/43\/240/);
});

test('the display has colours only where they are wanted', () => {
  expect(render(view(1), 0, STYLE)).not.toContain('\u001b');
  expect(render(view(1), 0, { ...STYLE, colour: true })).toContain('\u001b[32m');
});
