import { expect, test } from 'vitest';
import { formatProgress } from '../../lib/experiments/manager/overview.ts';

test.each([
  [45, 240, '45/240 (18.8%)'],
  [0, 240, '0/240 (0.0%)'],
  [9_999, 10_000, '9999/10000 (99.9%)'],
  [10_000, 10_000, '10000/10000 (100.0%)'],
  [0, 0, '0/0 (100.0%)'],
])('progress: %i of %i', (done, total, text) => {
  expect(formatProgress(done, total)).toBe(text);
});
