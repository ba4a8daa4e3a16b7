import { afterAll, expect, test } from 'vitest';
import { formatMoment, parseMoment } from '../../lib/platform/moments.ts';

const before = process.env.TZ;
afterAll(() => {
  if (before === undefined) delete process.env.TZ;
  else process.env.TZ = before;
});

/** The meaning of a text in a time zone: in ISO 8601, or the message. */
function meaning(text: string, zone = 'Europe/Berlin', now = '2026-01-07T08:30:00Z'): string {
  process.env.TZ = zone;
  try {
    return new Date(parseMoment(text, '--from', Date.parse(now))).toISOString().replace(':00.000Z', 'Z');
  } catch (error) {
    return (error as Error).message;
  }
}

// Now is Wednesday, 9:30 in Berlin.
test.each([
  ['now', '2026-01-07T08:30Z'],
  ['+2h', '2026-01-07T10:30Z'],
  ['+1h30m', '2026-01-07T10:00Z'],
  ['10:00', '2026-01-07T09:00Z'],
  ['9:00', '2026-01-08T08:00Z'],
  ['today 9:00', '2026-01-07T08:00Z'],
  ['Tomorrow 09:05', '2026-01-08T08:05Z'],
  ['friday 14:30', '2026-01-09T13:30Z'],
  ['wed 9:00', '2026-01-14T08:00Z'],
  ['wed 10:00', '2026-01-07T09:00Z'],
  ['tue 0:00', '2026-01-12T23:00Z'],
  ['tomorrow', '2026-01-07T23:00Z'],
  ['Friday', '2026-01-08T23:00Z'],
  ['wed', '2026-01-13T23:00Z'],
  ['2026-01-31', '2026-01-30T23:00Z'],
  ['2026-01-31 9:00', '2026-01-31T08:00Z'],
  ['2026-07-31 9:00', '2026-07-31T07:00Z'],
  ['2026-01-31T09:00', '2026-01-31T08:00Z'],
  ['2026-01-31T09:00Z', '2026-01-31T09:00Z'],
  ['2026-01-31T09:00-05:00', '2026-01-31T14:00Z'],
])('%s is %s', (text, expected) => {
  expect(meaning(text)).toBe(expected);
});

test.each([
  ['', 'is not a time; use'],
  ['soon', 'is not a time; use'],
  ['2026-02-30', 'is not a time; use'],
  ['25:00', 'is not a time; use'],
  ['2026-02-30 9:00', 'is not a time; use'],
  ['2026-02-30T09:00Z', 'is not a time; use'],
  ['2026-13-01 9:00', 'is not a time; use'],
  ['+2', 'without its unit'],
])('%j is refused, with a remedy', (text, words) => {
  expect(meaning(text)).toContain(words);
});

test('the same text is another moment in another time zone', () => {
  expect(meaning('10:00', 'America/New_York')).toBe('2026-01-07T15:00Z');
  expect(meaning('10:00', 'Asia/Kathmandu')).toBe('2026-01-08T04:15Z');
});

test('days on which clocks are set forward or back have their times', () => {
  const spring = (text: string) => meaning(text, 'Europe/Berlin', '2026-03-28T12:00:00Z');
  expect(spring('tomorrow 1:30')).toBe('2026-03-29T00:30Z');
  expect(spring('tomorrow 3:30')).toBe('2026-03-29T01:30Z');
  expect(spring('tomorrow 2:30')).toMatch(/doesn't exist: clocks are set forward then, to .*03:30 \+02:00/);
  const autumn = (text: string) => meaning(text, 'Europe/Berlin', '2026-10-24T12:00:00Z');
  expect(autumn('tomorrow 2:30')).toBe('2026-10-25T00:30Z');
  expect(autumn('tomorrow 4:00')).toBe('2026-10-25T03:00Z');
  expect(autumn('mon 9:00')).toBe('2026-10-26T08:00Z');
});

test('a moment is shown in local time with its offset', () => {
  process.env.TZ = 'America/St_Johns';
  expect(formatMoment(Date.parse('2026-01-07T12:00:00Z'))).toBe('Wed 2026-01-07 08:30 -03:30');
  process.env.TZ = 'Europe/Berlin';
  expect(formatMoment(Date.parse('2026-10-25T00:30:00Z'))).toBe('Sun 2026-10-25 02:30 +02:00');
  expect(formatMoment(Date.parse('2026-10-25T01:30:00Z'))).toBe('Sun 2026-10-25 02:30 +01:00');
});
