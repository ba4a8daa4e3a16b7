import { expect, test } from 'vitest';
import { formatProgress } from '../../../lib/sweeps/progress/progress.ts';

test.each([
  [45, 240, '45/240 (18.8%)'],
  [46, 240, '46/240 (19.2%)'],
  [2, 3, '2/3 (66.7%)'],
  [0, 0, '0/0 (100.0%)'],
  [9_999, 10_000, '9999/10000 (99.9%)'], // only all is 100%
  [10_000, 10_000, '10000/10000 (100.0%)'],
])('progress of %d of %d is written as counts and percent', (done, total, text) => {
  expect(formatProgress(done, total)).toBe(text);
});
