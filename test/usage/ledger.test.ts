import { spawnSync } from 'node:child_process';
import {
  appendFileSync,
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  type BeginningLease,
  dailyHours,
  readLedger,
  reportOf,
  type SumOptions,
  UsageLine,
  type Use,
} from '../../lib/usage/index.ts';
import { canMount, Machine, NOBODY, until } from '../support/machine.ts';
import { withTimeouts } from '../support/time.ts';

/** The bytes of a page of a tmpfs. */
const PAGE = 4096;
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const uid = process.geteuid?.() ?? 0;
const forEver = () => 1000 * DAY;

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-usage-'));
});
afterEach(() => rmSync(directory, { recursive: true }));

function begin(lease: Partial<BeginningLease> = {}, keptMs = forEver): UsageLine {
  const all = {
    since: Date.now(),
    waitedMs: 5,
    gpus: [{ index: 0, uuid: 'GPU-0' }],
    program: 'python',
    ...lease,
  };
  const line = UsageLine.begin(join(directory, 'usage'), all, keptMs);
  if (line === null) throw new Error('no line');
  return line;
}

/** All that is read, and how much was skipped of each user. */
const readAt = (path: string) => {
  const { uses, skipped } = readLedger(path, 0);
  return { uses: [...uses], skipped };
};
const read = () => readAt(join(directory, 'usage'));
const month = new Date().toISOString().slice(0, 7);
const path = (name: string) => join(directory, 'usage', name);

describe('the ledger', () => {
  test('a lease is running while its line is open, ended once it is, and lost if nobody noted the end', async () => {
    const line = begin({ since: Date.now() - HOUR, name: 'train', job: 7 });
    const [running] = read().uses;
    expect(running).toMatchObject({
      uid,
      program: 'python',
      name: 'train',
      job: 7,
      waitedMs: 5,
      state: 'running',
    });
    expect(running?.heldMs).toBeGreaterThanOrEqual(HOUR);
    line.end();
    expect(read().uses).toMatchObject([{ state: 'ended', exit: null }]);
    const machine = new Machine(1);
    try {
      const child = machine.start(
        [
          process.execPath,
          '--input-type=module',
          '-e',
          machine.script('new GPUOwner(); setTimeout(() => {}, 60_000);'),
        ],
        { env: withTimeouts({ usage: 10 }) },
      );
      const uses = () => readAt(join(machine.lockDirectory, 'usage')).uses;
      await until(() => readFileOf(machine).includes('"held":1'));
      expect(uses()).toMatchObject([{ state: 'running' }]);
      child.kill('SIGKILL');
      await until(() => uses()[0]?.state === 'lost');
      expect(uses()[0]?.heldMs).toBeGreaterThanOrEqual(1);
    } finally {
      await machine.close();
    }
  });

  test("a file is its user's, readable for all whatever the umask, and one per month", () => {
    const before = process.umask(0o077);
    try {
      begin().end();
      begin().end();
    } finally {
      process.umask(before);
    }
    expect(readdirSync(join(directory, 'usage'))).toEqual([`${uid}-${month}.jsonl`]);
    expect(statSync(path(`${uid}-${month}.jsonl`)).mode & 0o777).toBe(0o644);
    expect(statSync(join(directory, 'usage')).mode & 0o7777).toBe(0o1777);
  });

  test.skipIf(uid !== 0)('a file of another user with the same name neither counts nor is in the way', () => {
    begin().end();
    const line = readFileSync(path(`${uid}-${month}.jsonl`));
    chownSync(path(`${uid}-${month}.jsonl`), NOBODY, NOBODY);
    begin({ program: 'own' }).end();
    begin({ program: 'again' }).end();
    const [random = '', ...others] = readdirSync(join(directory, 'usage')).sort();
    expect(random).toMatch(new RegExp(`^${uid}-${month}\\.[0-9a-f]{16}\\.jsonl$`));
    expect(others).toEqual([`${uid}-${month}.jsonl`]);
    expect(read()).toMatchObject({ uses: [{ program: 'own' }, { program: 'again' }] });
    expect([...read().skipped]).toEqual([[NOBODY, 1]]);
    writeFileSync(path(`${NOBODY}-${month}.jsonl`), line);
    chownSync(path(`${NOBODY}-${month}.jsonl`), NOBODY, NOBODY);
    expect(
      read()
        .uses.map((use) => use.uid)
        .sort(),
    ).toEqual([uid, uid, NOBODY]);
  });

  test('a line that was cut by a full disk is lost alone', () => {
    begin({ program: 'first' }).end();
    const file = path(`${uid}-${month}.jsonl`);
    writeFileSync(file, readFileSync(file, 'utf8') + readFileSync(file, 'utf8').slice(0, 50));
    begin({ program: 'second' }).end();
    expect(read().uses.map(({ program }) => program)).toEqual(['first', 'second']);
  });

  test.skipIf(!canMount())('a full disk loses the line, and the output of the job says so', async () => {
    const machine = new Machine(1);
    const ledger = join(machine.lockDirectory, 'usage');
    expect((await machine.runCommand(['status'])).code).toBe(0);
    mkdirSync(ledger, { recursive: true });
    chmodSync(machine.lockDirectory, 0o1777);
    expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=8k', 'none', ledger]).status).toBe(0);
    try {
      const made = await machine.runCommand(['run', 'true']);
      expect(made).toMatchObject({ code: 0, stderr: '' });
      const own = join(ledger, `${uid}-${month}.jsonl`);
      appendFileSync(own, '\n'.repeat(PAGE - (statSync(own).size % PAGE)));
      spawnSync('dd', ['if=/dev/zero', `of=${join(ledger, 'other')}`]);
      expect(await machine.runCommand(['run', 'sh', '-c', 'exit 3'])).toMatchObject({
        code: 3,
        stderr: expect.stringMatching(
          /the use of these GPUs isn't noted in the ledger, .*usage: no space left on device/,
        ),
      });
      const { stdout } = await machine.runCommand(['report', '--by', 'job', '--json']);
      expect(JSON.parse(stdout)).toMatchObject({ rows: [{ key: 'root:true', leases: 1 }], skipped: 0 });
    } finally {
      spawnSync('umount', [ledger]);
      await machine.close();
    }
  });

  test("old files of the user are removed when a month begins, and everybody's when root's does", () => {
    begin().end();
    const own = `${uid}-${month}.jsonl`;
    const others = `${uid + 1}-2020-01.jsonl`;
    for (const name of [
      `${uid}-2020-01.jsonl`,
      `${uid}-${month}.0123456789abcdef.jsonl`,
      `${uid}-2020-01.txt`,
      others,
    ])
      writeFileSync(path(name), '');
    rmSync(path(own));
    begin({}, () => 30 * DAY).end();
    expect(readdirSync(join(directory, 'usage')).sort()).toEqual(
      [
        own,
        `${uid}-${month}.0123456789abcdef.jsonl`,
        `${uid}-2020-01.txt`,
        ...(uid === 0 ? [] : [others]),
      ].sort(),
    );
  });
});

function readFileOf(machine: Machine): string {
  try {
    return readFileSync(join(machine.lockDirectory, 'usage', `${uid}-${month}.jsonl`), 'utf8');
  } catch {
    return '';
  }
}

describe('sums', () => {
  const since = Date.parse('2026-03-28T12:00:00');
  const until = since + 2 * DAY;
  const use = (change: Partial<Use> = {}): Use => ({
    uid: 1,
    user: 'ann',
    gid: 10,
    gpus: [{ index: 0, instance: null, uuid: 'a', part: 1 }],
    since,
    heldMs: HOUR,
    waitedMs: 0,
    program: 'python',
    name: null,
    job: null,
    exit: 0,
    preempted: false,
    meteredMs: 0,
    idleMs: 0,
    energyJoules: null,
    memoryBytes: null,
    peakMemoryBytes: null,
    state: 'ended',
    ...change,
  });
  const sum = (uses: Use[], options: Partial<SumOptions> = {}) =>
    reportOf(
      { uses, skipped: new Map() },
      { since, until, by: 'user', gpus: 4, groupOf: () => 'staff', showsCommand: () => false, ...options },
    ).rows;

  test('time before and after is left out, and a part of a GPU counts as one', () => {
    const rows = sum([
      use({ since: since - HOUR, heldMs: 3 * HOUR }),
      use({
        since: until - HOUR,
        heldMs: 5 * HOUR,
        gpus: [{ index: 1, instance: 0, uuid: 'm', part: 0.25 }],
      }),
    ]);
    expect(rows).toEqual([
      {
        key: 'ann',
        leases: 2,
        gpuHours: 2.25,
        share: 2.25 / (4 * 48),
        waitedSeconds: { p50: 0, p90: 0 },
        idleShare: null,
        energyKWh: null,
      },
    ]);
  });

  test('the 90th percentile of waits', () => {
    const uses = Array.from({ length: 10 }, (_, i) => use({ waitedMs: (i + 1) * 1000 }));
    expect(sum(uses)[0]?.waitedSeconds).toEqual({ p50: 5, p90: 9 });
  });

  test('a lease over several days counts on each, also on a day of 23 hours', () => {
    const before = process.env.TZ;
    process.env.TZ = 'Europe/Berlin';
    try {
      const from = Date.parse('2026-03-28T23:00:00');
      const rows = sum([use({ since: from, heldMs: 25 * HOUR })], {
        by: 'day',
        since: from,
        until: from + 3 * DAY,
      });
      expect(rows.map(({ key, gpuHours, share }) => [key, gpuHours, share])).toEqual([
        ['2026-03-28', 1, 1 / 4],
        ['2026-03-29', 23, 1 / 4],
        ['2026-03-30', 1, 1 / 96],
      ]);
    } finally {
      process.env.TZ = before;
      if (before === undefined) delete process.env.TZ;
    }
  });

  test('rows are for GPUs, groups and jobs, too; others see no names of jobs', () => {
    const gpus = [0, 1].map((index) => ({ index, instance: null, uuid: String(index), part: 1 }));
    const uses = [use({ gpus, job: 3, name: 'train' }), use({ uid: 2, user: 'bob' })];
    const keys = (options: Partial<SumOptions>) =>
      sum(uses, options).map(({ key, gpuHours }) => [key, gpuHours]);
    expect(keys({ by: 'gpu' })).toEqual([
      ['0', 2],
      ['1', 1],
    ]);
    expect(keys({ by: 'group' })).toEqual([['staff', 3]]);
    expect(keys({ by: 'job', showsCommand: (owner) => owner === 1 })).toEqual([
      ['ann:3 train', 2],
      ['bob', 1],
    ]);
  });
});

describe('the hours of the last days', () => {
  const sums = async () => {
    const { days, users } = await dailyHours(join(directory, 'usage'), null, 30);
    expect(days).toHaveLength(30);
    return users.map(({ gpuHours }) => Math.round(gpuHours.reduce((sum, each) => sum + each, 0) * 100) / 100);
  };

  // Files are by month, and leases of some days are in one.
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['Date'], now: Date.parse('2026-06-15T12:00:00') });
  });
  afterEach(() => vi.useRealTimers());

  test('count what is noted', async () => {
    expect(await sums()).toEqual([]);
    const gpus = [0, 1].map((index) => ({ index, uuid: `GPU-${index}`, part: 0.75 }));
    begin({ since: Date.now() - 2 * DAY, gpus: [{ index: 3, uuid: 'GPU-3' }] }).end(); // long ago, and for as long
    const running = begin({ since: Date.now() - HOUR, gpus });
    begin({ since: Date.now() - 2 * HOUR }).end();
    expect(await sums()).toEqual([48 + 2 + 1.5]);
    running.end();
    appendFileSync(path(`${uid}-2026-06.jsonl`), 'a part of a li');
    expect(await sums()).toEqual([51.5]);
  });
});
