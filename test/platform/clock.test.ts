import { expect, test } from 'vitest';
import { isoTime } from '../../lib/platform/time.ts';

test('isoTime writes the same as Date.toISOString', () => {
  const days = Array.from({ length: 500 }, (_, i) => i * 31_557_600_123);
  for (const time of [...days, Date.UTC(2024, 1, 29, 23, 59, 59, 999), Date.UTC(2000, 0, 1)]) {
    expect(isoTime(time)).toBe(new Date(time).toISOString());
  }
  expect(Math.abs(Date.parse(isoTime()) - Date.now())).toBeLessThan(5_000);
});
