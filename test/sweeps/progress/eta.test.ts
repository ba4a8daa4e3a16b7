import { expect, test } from 'vitest';
import { Eta, formatRate } from '../../../lib/sweeps/progress/progress.ts';

test('the estimate is unknown until two tasks have ended', () => {
  const eta = new Eta(0, 45);
  expect(eta.rate(10_000)).toBe(null);
  eta.note(5_000, 46);
  expect(eta.rate(6_000)).toBe(null);
  eta.note(10_000, 47);
  expect(eta.rate(10_000)).toBeCloseTo(2 / 10_000);
  expect(eta.left(10_000, 10)).toBeCloseTo(50_000);
});

test('the estimate grows when tasks take longer than before', () => {
  const eta = new Eta(0, 0);
  eta.note(1_000, 10);
  expect(eta.rate(1_050)).toBeCloseTo(0.01);
  expect(eta.rate(10_000) as number).toBeLessThan(0.0015);
});

test('a retry starts the estimate again', () => {
  const eta = new Eta(0, 100);
  eta.note(1_000, 90);
  expect(eta.rate(2_000)).toBe(null);
});

test.each([
  [5, '5000 tasks/s'],
  [0.0032, '3.2 tasks/s'],
  [0.0005, '30.0 tasks/min'],
  [1 / 3_600_000, '1.0 tasks/h'],
  [0.1 / 3_600_000, '0.1 tasks/h'],
])('a rate of %f tasks per ms is readable', (rate, text) => expect(formatRate(rate)).toBe(text));
