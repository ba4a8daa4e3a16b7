// Bookings, in whole processes of two users.
import type { ChildProcess } from 'node:child_process';
import { chmodSync, closeSync, mkdirSync, openSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readBlock } from '../../lib/platform/directory.ts';
import { alice, bob, endHolder, RUN, startHolder, UNTIL_CLOSED } from '../support/holders.ts';
import { Machine, NOBODY, output, type Starting, until, uuidOf, whyNotNobody } from '../support/machine.ts';
import { nameOf } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { soakTest, withTimeouts } from '../support/time.ts';
import { Waiters } from './waiters.ts';

const GPUS = 3;
const STEPS = process.env.GPU_OWNER_SOAK ? 1_000 : 14;
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? 2);
/** How often each change is made that requests notice. */
const ROUNDS = process.env.GPU_OWNER_SOAK ? 10 : 1;
const HOUR_MS = 3_600_000;
const noSecondUser = whyNotNobody();
const NO_WAIT = ['--no-wait', ...UNTIL_CLOSED];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(GPUS);
});
afterEach(() => machine.close());

async function book(options: string[], starting: Starting = {}): Promise<number> {
  const { code, stdout, stderr } = await machine.runCommand(['book', ...options], starting);
  if (code !== 0) throw new Error(stderr);
  return Number(stdout);
}

const bookings = async () => JSON.parse((await machine.runCommand(['bookings', '--json'])).stdout);

describe.skipIf(noSecondUser !== null)(`bookings: ${noSecondUser ?? 'two users'}`, () => {
  test('only root may book by default, and whom the configuration names within its limits', async () => {
    const refused = await machine.runCommand(['book', '--for', '1h'], alice);
    expect(refused.code).toBe(77);
    expect(refused.stderr).toContain('only root may');
    machine.configure(`bookings: { gpus: 2, ahead: 1d, users: ['${alice.uid}'] }\n`);
    expect((await machine.runCommand(['book', '--for', '1h'], bob)).code).toBe(77);
    const first = ['book', '-n', '2', '--for', '1h', '--note', 'demo'];
    const far = ['book', '--from', '+23h', '--for', '2h'];
    const later = ['book', '-n', '2', '--from', '+1h', '--for', '2h'];
    expect(await machine.runCommands([first, ['book', '--for', '1h'], far, later], alice)).toMatchObject([
      { code: 0, stdout: '1\n' },
      { code: 75, stderr: expect.stringContaining('may book 2 at a time') },
      { code: 64, stderr: expect.stringContaining('bookings.ahead') },
      { code: 0, stdout: '2\n' },
    ]);
    const never = ['book', '-n', '2', '--devices', '0', '--for', '30m'];
    expect(await machine.runCommands([['book', '-n', '2', '--for', '30m'], never])).toMatchObject([
      {
        code: 75,
        stderr: expect.stringMatching(
          /only 1 can be booked.*GPU 0: booked for nobody until .*\(booking 1: demo\)/s,
        ),
      },
      { code: 64, stderr: expect.stringContaining('this machine has 3, of which 1 may be used here') },
    ]);
    expect(await bookings()).toEqual([
      expect.objectContaining({ id: 1, user: 'nobody', gpus: 2, note: 'demo' }),
      expect.objectContaining({ id: 2, user: 'nobody', gpus: 2, note: null }),
    ]);
    expect((await machine.runCommand(['bookings', 'cancel', '1'], bob)).code).toBe(77);
    expect((await machine.runCommand(['bookings', 'cancel', '1'], alice)).code).toBe(0);
    expect((await machine.runCommand(['bookings', 'cancel', '2'])).code).toBe(0);
    expect(await bookings()).toEqual([]);
  });

  test('--every repeats a booking until a day, that one included, under one number', async () => {
    const env = { TZ: 'Europe/Berlin' };
    const id = await book(
      [
        '--devices',
        '0',
        '--from',
        '2199-03-19 9:00',
        '--for',
        '3h',
        '--every',
        'week',
        '--until',
        '2199-04-09',
      ],
      { env },
    );
    const times = async () =>
      (await bookings()).map(({ id: number, from }: Record<string, unknown>) => [number, from]);
    // Clocks are set forward in between.
    expect(await times()).toEqual(
      ['2199-03-19T08', '2199-03-26T08', '2199-04-02T07', '2199-04-09T07'].map((hour) => [
        id,
        `${hour}:00:00.000Z`,
      ]),
    );
    expect((await machine.runCommand(['bookings'], { env })).stdout).toMatch(
      /^ {2}1\. GPU 0 for .*, and 3 times more, the last time from Tue 2199-04-09 09:00 \+02:00$/m,
    );
    const taken = await machine.runCommand(
      ['book', '--devices', '0', '--from', '2199-04-02 11:30', '--for', '1h'],
      { env },
    );
    expect([taken.code, taken.stderr]).toEqual([75, expect.stringContaining('(booking 1)')]);
    await book(['--devices', '0', '--from', '2199-04-03 9:00', '--for', '1h'], { env });
    expect((await machine.runCommand(['bookings', 'cancel', String(id)])).code).toBe(0);
    expect(await times()).toEqual([[2, '2199-04-03T07:00:00.000Z']]);
  });

  test('a repeated booking counts each time, and its last time counts for the limits', async () => {
    machine.configure(`bookings: { ahead: 5d, users: ['${alice.uid}'] }\n`);
    const date = (days: number) => new Date(Date.now() + days * 24 * HOUR_MS).toISOString().slice(0, 10);
    const each = ['--for', '1h', '--every', 'day', '--until'];
    const far = await machine.runCommand(['book', ...each, date(7)], alice);
    expect([far.code, far.stderr]).toEqual([64, expect.stringContaining('bookings.ahead')]);
    await book(['--devices', '0', ...each, date(3)], alice);
    const others = await machine.runCommand(['run', '--devices', '0', '--no-wait', '--', 'true'], bob);
    expect([others.code, others.stderr]).toEqual([75, expect.stringContaining('booked for nobody')]);
    const mistakes = [
      [['--for', '25h', '--every', 'day', '--until', date(3)], 'longer than until its repeat'],
      [['--for', '1h', '--every', 'day'], '--every: until when?'],
      [['--for', '1h', '--until', date(3)], '--until is for --every'],
      [
        ['--for', '1h', '--every', 'day', '--until', date(-1)],
        '--until: that day is over before the booking',
      ],
      [['--for', '1h', '--every', 'day', '--until', date(200)], 'more than 100 times'],
      [['--for', '100000000h'], 'after the year 9999'],
    ] as const;
    const results = await machine.runCommands(mistakes.map(([args]) => ['book', ...args]));
    for (const [at, [, why]] of mistakes.entries())
      expect(results[at]).toMatchObject({ code: 64, stderr: expect.stringContaining(why) });
  });

  test('root books for another user', async () => {
    await book(['-n', String(GPUS), '--for', '1h', '--user', String(alice.uid)]);
    expect((await machine.runCommand(['status'])).stdout).toMatch(/ booked\n +booked for nobody until /);
    expect((await machine.runCommand(['top'])).stdout).toMatch(/: 3 booked.* booked for nobody until /s);
    await endHolder(await startHolder(machine, ['-n', '2'], alice));
    const { code, stderr } = await machine.runCommand([...RUN, '--no-wait', '--', 'true']);
    expect(code).toBe(75);
    expect(stderr).toContain('GPU 0: free, but booked for nobody until');
    expect((await machine.runCommand(['book', '--for', '1h', '--user', 'root'], alice)).code).toBe(64);
    const cancelled = await machine.runCommand(['bookings', 'cancel', '1'], alice);
    expect(cancelled.stderr).toContain("booking 1 is root's: only root can cancel it.");
  });

  test('forged files change nothing', async () => {
    await book(['--for', '1h', '--devices', '2']);
    const content = (id: number, more: object) =>
      JSON.stringify({
        id,
        uuids: [uuidOf(0)],
        from: Date.now() - HOUR_MS,
        until: Date.now() + HOUR_MS,
        ...more,
      });
    const at = (name: string) => join(machine.lockDirectory, name);
    const write = `printf '%s' "$1" > "$0"`;
    await machine.run(['sh', '-c', write, at('booking-7'), content(7, { uid: 0 })], bob);
    await machine.run(['sh', '-c', write, at('booking-8'), content(8, { uid: alice.uid })], alice);
    writeFileSync(at('booking-9'), content(9, {}));
    chmodSync(at('booking-9'), 0o666); // anybody may have written it
    writeFileSync(at('booking-10'), content(11, {}));
    writeFileSync(at('booking-12'), 'nonsense');
    mkdirSync(at('booking-13'));
    expect((await bookings()).map(({ id }: { id: number }) => id)).toEqual([1]);
    const holder = await startHolder(machine, ['-n', '2'], alice);
    await endHolder(holder);
    expect(await book(['--for', '1h'])).toBe(2);
  });

  soakTest(
    'files planted under the names of bookings are read up to a bound, and hide no booking',
    async () => {
      await book(['--for', '1h', '--devices', '2']);
      const plant = `cd "$0" && for i in $(seq 2 "$1"); do echo '{}' >"booking-$i"; done`;
      await machine.run(['sh', '-c', plant, machine.lockDirectory, '1500'], bob);
      expect((await bookings()).map(({ id }: { id: number }) => id)).toEqual([1]);
      expect((await machine.runCommand(['run', '--no-wait', '-n', '3', 'true'], alice)).code).toBe(75);
      expect(await machine.runCommand(['book', '--for', '1h'])).toMatchObject({
        code: 73,
        stderr: expect.stringMatching(/no number is left for a booking: there are 1024 files /),
      });
      await machine.run(['sh', '-c', 'rm "$0"/booking-7', machine.lockDirectory], bob);
      expect(await book(['--for', '1h'])).toBe(7);
    },
  );

  test('a request waits until the booking of another user is over, and says so', async () => {
    machine = new Machine(1);
    await book(['--for', '10s']);
    const child = machine.startCommand([...RUN, ...UNTIL_CLOSED], alice);
    const waiters = new Waiters(machine);
    await waiters.untilWaiting(1);
    const [entry] = await waiters.queue();
    expect(entry.details).toEqual([
      expect.stringMatching(/^GPU 0 is booked for root until .* \(booking 1\)/),
    ]);
    expect(entry.why).toMatch(/^GPU 0 is booked by root until \d\d:\d\d/);
    expect(entry.waitingFor[0].reason).toContain('booked for root until');
    await output(child, /^started/m);
    expect(await bookings()).toEqual([]);
    await endHolder(child);
  });

  test.each([
    ['in Node.js', {}],
    ['natively', withTimeouts({ handoverBehind: 300 })],
  ])(
    'a request that waits %s notices within seconds that a booking is cancelled, or made for its user',
    { timeout: ROUNDS * 60_000 },
    async (form, env) => {
      machine = new Machine(2);
      const waiters = new Waiters(machine);
      const waiting = async (count: number, options: string[] = [], user = alice) => {
        const child = machine.startCommand([...RUN, ...options, ...UNTIL_CLOSED], { ...user, env });
        await waiters.untilWaiting(count);
        return child;
      };
      const holder = await startHolder(machine, ['--devices', '0']);
      const ahead = form === 'natively' ? 1 : 0; // the first in the queue stays in Node.js
      const front = ahead === 0 ? null : await waiting(1, ['--devices', '0']);
      const onGpu1 = ['book', '--devices', '1', '--for', '1h'];
      const cancel = ['bookings', 'cancel', '1'];
      const delays: number[] = [];
      const untilStarted = async (child: ChildProcess, act: string[]) => {
        const began = performance.now();
        expect((await machine.runCommand(act)).code).toBe(0);
        await output(child, /^started/m);
        delays.push(performance.now() - began);
        await endHolder(child);
      };
      for (let round = 0; round < ROUNDS; round++) {
        await machine.runCommand(onGpu1);
        const first = await waiting(1 + ahead);
        if (form === 'natively') await until(() => nameOf(first.pid as number) === 'gpu-owner-wait');
        await untilStarted(first, cancel);
        // GPU 1 is kept for a request for both, until that can't use it.
        const whole = await waiting(1 + ahead, ['-n', '2'], bob);
        await untilStarted(await waiting(2 + ahead), [...onGpu1, '--user', String(alice.uid)]);
        await machine.runCommand(cancel);
        whole.kill();
        await waiters.untilWaiting(ahead);
      }
      front?.kill();
      expect(delays.sort((a, b) => a - b)[ROUNDS]).toBeLessThan(5_000);
      await endHolder(holder);
    },
  );

  soakTest('a leased GPU whose booking is cancelled is watched from then on', async () => {
    machine = new Machine(2);
    const waiters = new Waiters(machine);
    const holder = await startHolder(machine, ['--devices', '0']);
    const former = await startHolder(machine, ['--devices', '1']);
    const first = machine.startCommand([...RUN, '--devices', '0', ...UNTIL_CLOSED], bob);
    await waiters.untilWaiting(1);
    await book(['--devices', '1', '--for', '1h']);
    const second = machine.startCommand([...RUN, ...UNTIL_CLOSED], alice);
    await waiters.untilWaiting(2);
    await machine.runCommand(['bookings', 'cancel', '1']);
    // The second request looks with its next heartbeat.
    const file = openSync(join(machine.lockDirectory, 'line.lock'), 'r');
    const heartbeat = () => readBlock(file, 32, 2 * 4_096 - 32).toString();
    for (let i = 0; i < 2; i++) {
      const before = heartbeat();
      await until(() => heartbeat() !== before);
    }
    closeSync(file);
    await endHolder(former);
    await output(second, /^started/m);
    await endHolder(second);
    first.kill();
    await endHolder(holder);
  });

  test('what runs when a booking begins is shown to both, and ends only if it is preemptible', async () => {
    const holder = await startHolder(machine, ['--devices', '0'], alice);
    const filler = await startHolder(machine, ['--devices', '1', '--preemptible'], alice);
    const { stderr } = await machine.runCommand(['book', '-n', '2', '--devices', '0,1', '--for', '1h']);
    expect(stderr).toMatch(/GPU 0 may still be in use then: leased by nobody .*preemptible job is ended/);
    const shown = await machine.runCommand(['bookings']);
    expect(shown.stdout).toMatch(/GPU 0 is still in use: leased by nobody/);
    const [gpu] = await machine.status();
    expect(gpu.reason).toMatch(/leased by nobody /);
    expect(gpu.booking).toEqual(expect.objectContaining({ id: 1, user: 'root', note: null }));
    const own = await startHolder(machine, ['-n', '2']);
    expect(filler.exitCode ?? (await new Promise((resolve) => filler.once('exit', resolve)))).toBe(143);
    expect(holder.exitCode).toBeNull();
    await endHolder(own);
    // Booked GPUs that are idle are there for preemptible jobs.
    await endHolder(await startHolder(machine, ['--devices', '1', '--preemptible', '--no-wait'], alice));
    const { code } = await machine.runCommand([...RUN, '--devices', '1', ...NO_WAIT], alice);
    expect(code).toBe(75);
    await endHolder(holder);
  });

  test(`jobs start beside bookings as a calendar has them, in ${STEPS} steps (GPU_OWNER_TEST_SEED=${SEED})`, {
    timeout: STEPS * 20_000,
  }, async () => {
    machine.configure(`bookings: { users: ['${NOBODY}'] }\n`);
    const random = new Random(SEED);
    const users: Record<string, Starting> = { root: {}, nobody: alice };
    /** In hours from now: the steps take seconds. */
    let calendar: { id: number; user: string; gpus: number[]; from: number; until: number }[] = [];
    const jobs = new Map<number, { child: Awaited<ReturnType<typeof startHolder>>; user: string }>();
    const seen = { booked: 0, refused: 0, started: 0, kept: 0 };
    for (let step = 0; step < STEPS; step++) {
      const user = random.integer(2) === 0 ? 'root' : 'nobody';
      const starting = users[user] ?? {};
      const action = random.pick(['book', 'book', 'cancel', 'end', 'end', 'begin', 'begin', 'begin']);
      if (action === 'book') {
        const from = random.integer(6);
        const until = from + 1 + random.integer(4);
        const device = random.integer(GPUS);
        const isTaken = calendar.some(
          (other) => other.gpus.includes(device) && other.from < until && from < other.until,
        );
        const words = ['book', '--devices', String(device), '--from', `+${from * 60 + 30}m`];
        // Half an hour less, so that the seconds between two steps don't matter.
        const given = from === 0 ? ['book', '--devices', String(device), '--from', 'now'] : words;
        const minutes = (until - from) * 60 - (from === 0 ? 0 : 30);
        const result = await machine.runCommand([...given, '--for', `${minutes}m`], starting);
        expect(result.code, result.stderr).toBe(isTaken ? 75 : 0);
        if (isTaken) continue;
        calendar.push({ id: Number(result.stdout), user, gpus: [device], from, until });
        seen.booked++;
      } else if (action === 'cancel' && calendar.length > 0) {
        const { id, user: own } = random.pick(calendar) as (typeof calendar)[number];
        const result = await machine.runCommand(['bookings', 'cancel', String(id)], starting);
        const isAllowed = user === 'root' || own === user;
        expect(result.code).toBe(isAllowed ? 0 : 77);
        if (isAllowed) calendar = calendar.filter((each) => each.id !== id);
      } else if (action === 'end' && jobs.size > 0) {
        const gpu = random.pick([...jobs.keys()]) as number;
        await endHolder((jobs.get(gpu) as { child: Awaited<ReturnType<typeof startHolder>> }).child);
        jobs.delete(gpu);
      } else {
        const hours = random.pick([null, 1, 2, 4]) ?? null;
        const usable = Array.from({ length: GPUS }, (_, gpu) => gpu).filter(
          (gpu) =>
            !jobs.has(gpu) &&
            !calendar.some((other) => {
              // Bookings of later hours begin half past.
              const begins = other.from === 0 ? 0 : other.from + 0.5;
              return other.gpus.includes(gpu) && other.user !== user && begins < (hours ?? 1e9);
            }),
        );
        const limit = hours === null ? [] : ['--for', `${hours * 60}m`];
        const child = machine.startCommand([...RUN, ...limit, ...NO_WAIT], starting);
        const isStarted = await Promise.race([
          output(child, /^started/m).then(() => true),
          new Promise<boolean>((resolve) => child.once('exit', () => resolve(false))),
        ]).catch(() => false);
        expect(isStarted, `step ${step}: ${JSON.stringify({ user, hours, calendar })}`).toBe(
          usable.length > 0,
        );
        if (!isStarted) {
          if (jobs.size < GPUS) seen.kept++;
          seen.refused++;
          continue;
        }
        const states = await machine.status();
        const gpu = states.findIndex((each) => each.lease?.pid !== undefined && !jobs.has(each.index));
        expect(usable).toContain(gpu);
        jobs.set(gpu, { child, user });
        seen.started++;
      }
    }
    const found = (await bookings()).map(({ id }: { id: number }) => id).sort();
    expect(found).toEqual(calendar.map(({ id }) => id).sort());
    for (const { child } of jobs.values()) await endHolder(child);
    if (process.env.GPU_OWNER_TEST_SEED === undefined)
      expect(Math.min(...Object.values(seen)), JSON.stringify(seen)).toBeGreaterThan(0);
  });
});
