// The pictures of `top` fit their place, and are harmless, whatever is told of the machines.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { History, type MachineState } from '../../lib/views/machine-view.ts';
import type { ScreenStyle } from '../../lib/views/top/pen.ts';
import { drawMachines } from '../../lib/views/top/picture.ts';
import type { ViewOptions } from '../../lib/views/top/rows.ts';

const NOW = Date.parse('2025-11-20T12:00:00Z');
const ALL: ViewOptions = { filter: '', selected: null };
const PLAIN: ScreenStyle = { columns: 80, rows: 24, attributes: false, colour: false, unicode: true };

const lease = (more: object = {}) => ({
  user: 'alice',
  uid: 1000,
  pid: 4711,
  host: 'a',
  command: 'python train.py',
  since: '2025-11-20T10:42:00.000Z',
  convention: 'gpu-owner',
  ...more,
});

const gpu = (index: number, more: object = {}) => ({
  index,
  instance: null,
  uuid: `GPU-${index}`,
  parent: null,
  name: 'NVIDIA A100-SXM4-80GB',
  pciBusId: null,
  state: 'free',
  reason: null,
  memory: { totalBytes: 80 * 1024 ** 3, usedBytes: 20 * 1024 ** 3, freeBytes: null, reservedBytes: null },
  powerWatts: 60,
  powerLimitWatts: 400,
  utilizationPercent: 50,
  temperatureCelsius: 31,
  computeMode: 'default',
  displayActive: false,
  migEnabled: false,
  migInstances: [],
  processes: [],
  lease: null,
  shares: [],
  idle: null,
  booking: null,
  suspect: null,
  ...more,
});

const waiter = (position: number, more: object = {}) => ({
  position,
  count: 1,
  user: 'bob',
  uid: 1001,
  pid: position,
  host: 'a',
  command: 'sleep',
  since: '2025-11-20T11:00:00.000Z',
  job: null,
  name: null,
  note: null,
  stopped: false,
  latestStart: null,
  waitUntil: null,
  memory: null,
  why: 'starts in a moment',
  details: [],
  waitingFor: [],
  ...more,
});

function machine(snapshot: object, more: object = {}): MachineState {
  const whole = {
    time: new Date(NOW).toISOString(),
    gpus: [],
    queue: [],
    waiting: 0,
    intruders: [],
    ...snapshot,
  };
  const history = new History();
  history.add(whole as never);
  return { host: null, snapshot: whole, problem: null, history, jobs: [], ...more } as MachineState;
}

const draw = (
  machines: MachineState[],
  choice: Partial<ViewOptions> = {},
  style: Partial<ScreenStyle> = {},
) => drawMachines(machines, { ...ALL, ...choice }, { ...PLAIN, ...style }, NOW, ['footer']);

/** How wide a terminal shows it: test texts are ASCII, blocks, and ideographs, which take two columns. */
const columnsOf = (line: string) =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  [...line.replace(/\u001b\[[\d;]*m/g, '')].reduce((sum, c) => sum + (/[\u3000-\u9fff]/.test(c) ? 2 : 1), 0);

describe('a picture', () => {
  const texts = fc.oneof(
    fc.string({ maxLength: 300 }),
    fc.constantFrom(
      '\u001b[31mred',
      '\u202eroot',
      '\u8bad\u7ec3'.repeat(99),
      'a\nb',
      '\u001b]0;title\u0007',
      '',
    ),
  );
  const times = fc.oneof(fc.constant(null), texts, fc.date().map(String));
  const numbers = fc.oneof(fc.constant(null), fc.double(), fc.integer());
  const leases = fc.record({
    user: texts,
    uid: numbers,
    pid: numbers,
    command: texts,
    since: times,
    note: texts,
    name: texts,
  });
  const gpus = fc.record({
    name: texts,
    state: fc.constantFrom('free', 'leased', 'busy', 'unavailable', 'new'),
    utilizationPercent: numbers,
    powerWatts: numbers,
    lease: fc.option(leases),
    booking: fc.constant(null),
    suspect: fc.constant(null),
    idle: fc.option(fc.record({ since: times, looks: numbers })),
    memory: fc.record({ totalBytes: numbers, usedBytes: numbers }),
  });
  const ascii = (text: string) => /^[\u0020-\u007e]*$/.test(text);

  test('of anything is as wide and high as its place at most, and has no control character', () => {
    fc.assert(
      fc.property(
        fc.array(gpus, { maxLength: 12 }),
        fc.array(fc.record({ user: texts, command: texts, since: times, name: texts, why: texts }), {
          maxLength: 30,
        }),
        fc.array(fc.record({ name: texts, user: texts, usedBytes: numbers, pid: numbers }), { maxLength: 9 }),
        fc.record({
          columns: fc.integer({ min: 20, max: 240 }),
          rows: fc.integer({ min: 1, max: 60 }),
          unicode: fc.boolean(),
        }),
        (many, queue, intruders, place) => {
          const state = machine({
            gpus: many.map((each, i) => gpu(i, { ...each, lease: each.lease && lease(each.lease) })),
            queue: queue.map((each, i) => waiter(i + 1, each)),
            waiting: queue.length,
            intruders: intruders.map((each) => ({ uuid: 'GPU-0', ...each })),
          });
          const { lines } = draw([state], {}, place);
          expect(lines).toHaveLength(place.rows);
          for (const line of lines) {
            // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
            expect(line).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u202e]/);
            if (ascii(line)) expect(line.length).toBeLessThanOrEqual(place.columns);
            if (!place.unicode) expect(ascii(line)).toBe(true);
          }
        },
      ),
      { seed: 1, numRuns: 100 },
    );
  });

  test('cuts ideographs by their columns', () => {
    const state = machine({
      gpus: [gpu(0, { state: 'leased', lease: lease({ user: '\u8bad\u7ec3'.repeat(9) }) })],
    });
    for (let columns = 40; columns < 90; columns++) {
      for (const line of draw([state], { selected: ' GPU-0' }, { columns, attributes: true, colour: true })
        .lines)
        expect(columnsOf(line)).toBeLessThanOrEqual(columns);
    }
  });

  test('of a selected row marks it, and rows out of sight are scrolled to', () => {
    const gpus = Array.from({ length: 64 }, (_, i) => gpu(i));
    const { lines, rows } = draw([machine({ gpus })], { selected: ' GPU-50' });
    expect(rows).toHaveLength(64);
    expect(lines.filter((line) => line.startsWith('>'))).toEqual([expect.stringMatching(/^>50 /)]);
    expect(lines[1]).toMatch(/ \d+-\d+ of 64$/);
  });

  test('of ten thousand requests takes hardly longer than that of two hundred', () => {
    const queue = Array.from({ length: 10_000 }, (_, i) => waiter(i + 1));
    const time = (count: number) => {
      const state = machine({ gpus: [gpu(0)], queue: queue.slice(0, count), waiting: count });
      draw([state]);
      const before = process.cpuUsage();
      for (let i = 0; i < 5; i++) draw([state]);
      const { user, system } = process.cpuUsage(before);
      return (user + system) / 5_000;
    };
    time(200);
    expect(time(10_000)).toBeLessThan(Math.max(100, 200 * time(200)));
    const { lines } = draw([machine({ gpus: [gpu(0)], queue, waiting: 12_345 })]);
    expect(lines).toHaveLength(24);
    expect(lines.join('\n')).toMatch(/12345 waiting[\s\S]*WAITING +1-\d+ of 10001/);
  });

  test('shows the last minute, as seconds pass', () => {
    const history = new History();
    for (let second = 0; second < 90; second++) {
      const snapshot = {
        time: new Date(NOW - (89 - second) * 1_000).toISOString(),
        gpus: [gpu(0, { utilizationPercent: second < 60 ? 0 : 100 })],
      };
      history.add(snapshot as never);
    }
    expect(history.of('GPU-0')).toHaveLength(60);
    const { lines } = draw([machine({ gpus: [gpu(0)] }, { history })], {}, { columns: 79, unicode: false });
    expect(lines[2]).toMatch(/ _{3}#{3} /);
  });

  test('says what is wrong, and how old it is', () => {
    const { lines } = draw([machine({ gpus: [gpu(0)] }, { problem: 'the driver has not answered for 9 s' })]);
    expect(lines[1]).toMatch(
      /^! the driver has not answered for 9 s\. Showing the snapshot of \d\d:\d\d:\d\d\.$/,
    );
    expect(lines[3]).toMatch(/ free/);
  });

  test('keeps the holder whole before the note, at any width', () => {
    const until = new Date(NOW + 20 * 3_600_000);
    const note = 'a note that needs more room than a narrow terminal has';
    const state = machine({
      gpus: [
        gpu(0, { state: 'leased', lease: lease({ user: 'caroline', note, until: until.toISOString() }) }),
      ],
    });
    for (let columns = 30; columns <= 200; columns++) {
      const { lines } = draw([state], {}, { columns });
      expect(lines[2]).toContain(' caroline ');
      // Tomorrow's is a time, too.
      if (columns >= 56) expect(lines[2]).toContain(` ${until.toTimeString().slice(0, 5)} `);
      if (columns >= 76) expect(lines[2]).toMatch(/ (a note .*|a n.*…)$/);
    }
  });

  test('has a line for each share, with its memory, in red if it uses more', () => {
    const GIB = 1024 ** 3;
    const shares = [
      { ...lease({ user: 'ann', name: 'nb', pid: 1 }), bytes: 25 * GIB, usedBytes: 20 * GIB },
      { ...lease({ user: 'ben', name: 'greedy', pid: 2 }), bytes: 10 * GIB, usedBytes: 15 * GIB },
    ];
    const reason = '35 GiB of 79.5 GiB leased in shares by ann and ben';
    const { lines } = draw(
      [machine({ gpus: [gpu(0, { state: 'shared', reason, shares }), gpu(1)] })],
      {},
      { columns: 120 },
    );
    expect(lines[2]).toMatch(/^ 0 .*20\.0\/80\.0G .*35 GiB of 79\.5 GiB leased in shares by ann and/);
    expect(lines[3]).toMatch(/^ {5}.*20\.0\/25\.0G .*ann +nb /);
    expect(lines[4]).toMatch(/^ {5}.*15\.0\/10\.0G .*ben +greedy /);
    expect(lines[5]).toMatch(/^ 1 /);
  });

  test('marks a preemptible lease before its note or command', () => {
    const note = 'a note';
    const leases = [{ preemptible: true }, { preemptible: true, note }, { note }].map(lease);
    const gpus = leases.map((each, i) => gpu(i, { state: 'leased', lease: each }));
    const { lines } = draw([machine({ gpus })], {}, { columns: 100 });
    const notes = lines
      .slice(2, 5)
      .map((line) => /(preemptible; )?(python train\.py|a note)\s*$/.exec(line)?.[0].trim());
    expect(notes).toEqual(['preemptible; python train.py', 'preemptible; a note', 'a note']);
  });

  test('cuts no title of a column where it says what part is shown', () => {
    const gpus = Array.from({ length: 64 }, (_, index) =>
      gpu(index, {
        state: 'leased',
        lease: lease({ until: '2025-11-20T16:00:00.000Z' }),
        idle: { seconds: 90 },
      }),
    );
    const whole = ' GPU NAME MEMORY UTIL MINUTE POWER TEMP HOLDER JOB SINCE UNTIL IDLE NOTE COMMAND '.split(
      ' ',
    );
    for (let columns = 80; columns <= 200; columns++) {
      const [, heading = ''] = draw([machine({ gpus })], {}, { columns }).lines;
      const [titles, mark] = heading.split(/ (?=\d+-\d+ of 64$)/);
      expect([columns, mark]).not.toContain(undefined);
      expect([columns, titles?.split(/ +/).filter((title) => !whole.includes(title))]).toEqual([columns, []]);
    }
  });

  test('says that nothing matches a filter', () => {
    const { lines } = draw([machine({ gpus: [gpu(0)] })], { filter: 'bob' });
    expect(lines[2]).toBe(" Nothing matches 'bob'. Esc shows all again.");
  });

  test('lists processes with their users, shares and commands, those without a claim first', () => {
    const process = (pid: number, more: object) => {
      const base = { uuid: 'GPU-0', pid, name: 'python', user: 'alice', uid: 1000, usedBytes: 2 ** 30 };
      return {
        ...base,
        type: 'compute',
        command: 'python train.py',
        smPercent: 40,
        isIntruder: false,
        ...more,
      };
    };
    const processes = [
      process(7, {}),
      process(8, { uuid: 'GPU-1', user: 'bob', uid: 1001, isIntruder: true, smPercent: null, command: null }),
    ];
    const { lines } = draw([machine({ gpus: [gpu(0), gpu(1)], processes })]);
    expect(lines.join('\n')).toMatch(
      /GPU +PID USER +MEMORY +%SM PROCESS *\n 1 +8 bob +1 GiB +\? without a claim: python *\n 0 +7 alice +1 GiB +40 python train\.py/,
    );
  });

  test('shows who waits before processes and users, where there is little room', () => {
    const uses = { name: 'python', user: 'bob', uid: 1001, usedBytes: 1, type: 'compute', isIntruder: true };
    const processes = Array.from({ length: 9 }, (_, pid) => ({ ...uses, uuid: 'GPU-0', pid }));
    const gpus = [0, 1, 2, 3].map((i) => gpu(i));
    const state = machine({ gpus, processes, queue: [waiter(1)], waiting: 1 });
    for (const rows of [12, 14, 24])
      expect(draw([state], {}, { rows }).lines.join('\n')).toMatch(/ WAITING *\n +1\. bob/);
  });

  test('says why a request waits in a second line, with its note', () => {
    const queue = [waiter(1, { why: "after ben's vit-large", note: 'urgent' })];
    const state = machine({ gpus: [gpu(0)], queue, waiting: 1 });
    expect(draw([state]).lines.join('\n')).toMatch(
      / 1\. bob +a GPU pid 1 +\d\d:\d\d sleep *\n {6}after ben's vit-large; urgent *\n/,
    );
  });

  test.each([80, 120, 200])(
    'shows a name of 20 characters in full, and bookings, at %i columns',
    (columns) => {
      const user = 'devika-ramakrishnan1';
      const booking = {
        user: 'cara',
        from: new Date(NOW + 3_600_000).toISOString(),
        until: '2999-01-01T00:00Z',
      };
      const mine = { ...lease({ user, name: 'eval' }) };
      const full = { totalBytes: 2, usedBytes: 3, freeBytes: 0, reservedBytes: 0 };
      const shares = [{ ...mine, bytes: 2, usedBytes: 3 }];
      const gpus = [
        gpu(0, { state: 'leased', lease: mine, booking }),
        gpu(1, { booking }),
        gpu(2, { state: 'shared', shares, memory: full }),
      ];
      const processes = [
        { uuid: 'GPU-0', pid: 1, name: 'python', user, uid: mine.uid, type: 'compute', command: 'python' },
      ];
      const state = machine({ gpus, queue: [waiter(1, { user, uid: mine.uid })], waiting: 1, processes });
      const text = draw([state], {}, { columns, rows: 40 }).lines.join('\n');
      expect(text.match(new RegExp(user, 'g'))).toHaveLength(5); // a lease, a share, a request, a process, a sum
      expect(text).toMatch(/ free, booked by cara from \d\d:\d\d/);
      if (columns > 80) expect(text).toMatch(/ eval .* booked by c/);
      // An amount above the whole doesn't run into its bar.
      expect(text).toMatch(/█ +(150%|0\.0\/0\.0G)/);
    },
  );

  test('adds up what users have', () => {
    const state = machine({
      gpus: [
        ...[0, 1, 2].map((i) => gpu(i, { state: 'leased', lease: lease() })),
        gpu(3, { state: 'busy', utilizationPercent: 70 }),
      ],
      queue: [waiter(1, { user: 'alice', uid: 1000 }), waiter(2)],
      waiting: 2,
      intruders: [
        { uuid: 'GPU-3', pid: 7, name: 'python', user: 'carol', uid: 1002, usedBytes: 8 * 1024 ** 3 },
        { uuid: 'GPU-3', pid: 8, name: 'python', user: 'carol', uid: 1002, usedBytes: 1024 ** 3 },
        { uuid: 'GPU-0', pid: 9, name: 'python', user: 'alice', uid: 1000, usedBytes: null },
      ],
    });
    expect(draw([state]).lines.join('\n')).toMatch(
      /^ alice +3 GPUs, 60 GiB, 50% util, 1 waiting, 1 without a claim *\n carol +9 GiB, 70% util, 1 without a claim *\n bob +1 waiting/m,
    );
  });
});
