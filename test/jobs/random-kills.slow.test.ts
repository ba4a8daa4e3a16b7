// Hundreds of jobs of two users while processes of ours are killed and suspended at random. The truth is noted by the commands
// themselves, and told by the kernel's locks and the simulated driver; gpu-owner is only asked whether it says the same.
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Machine, NOBODY, pause, python, until, uuidOf, whyNotNobody } from '../support/machine.ts';
import { isAlive, processState, sendSignal } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { Jobs, type ListedJob } from './background.ts';

const SOAK = process.env.GPU_OWNER_SOAK !== undefined;
const JOBS = SOAK ? 500 : 30;
const GPUS = 8;
const SUBMITTERS = 4;
/** How late a state may be, in s: a second, and what a busy machine delays. */
const MAX_LATE_S = 5;
const LIMIT = { text: '400ms', exitCode: 124 };
const FOREVER_S = 600;

const seed = Number(process.env.GPU_OWNER_TEST_SEED ?? Date.now() % 1_000_000);
const dice = new Random(seed);
const random = () => dice.float();
const chance = (probability: number) => random() < probability;
const clock = () => Number(process.hrtime.bigint()) / 1e9;

/** A job's fate: as it is planned, and as tests have interfered with it. */
interface Plan {
  number: number;
  user: number;
  count: number;
  seconds: number;
  code: number;
  isLimited: boolean;
  after: { plan: Plan; isOk: boolean }[];
  isCancelled: boolean;
  id: number | null;
  /** Processes of it that were killed, by their kind. */
  killed: string[];
  /** When something was last done to one of its processes. */
  touched: number;
}

interface Noted {
  start: number | null;
  end: number | null;
}

let machine: Machine;
let users: Jobs[];
afterEach(async () => {
  for (const jobs of users) await jobs.end();
  await machine.close();
});

test(`${JOBS} jobs of two users: none is lost that was not killed, none runs twice or too early, and all that is said is true`, {
  timeout: JOBS * 1_000 + 120_000,
}, async () => {
  machine = new Machine(GPUS);
  users = [undefined, ...(whyNotNobody() === null ? [NOBODY] : [])].map(
    (uid) => new Jobs(machine, uid === undefined ? {} : { uid }),
  );
  const directory = join(machine.directory, 'witness');
  mkdirSync(directory);
  chmodSync(directory, 0o777);
  const files = [
    'journal',
    ...Array.from({ length: GPUS }, (_, i) => uuidOf(i)),
    ...Array.from({ length: JOBS }, (_, i) => `job-${i}`),
  ];
  for (const name of files) {
    writeFileSync(join(directory, name), '');
    chmodSync(join(directory, name), 0o666);
  }
  await machine.runCommand(['status']); // makes the machine
  const journal = () => readFileSync(join(directory, 'journal'), 'latin1');
  const noted = () => {
    const found = new Map<number, Noted>();
    for (const line of journal().split('\n')) {
      const [what, number, , at] = line.split(' ');
      const each = found.get(Number(number)) ?? { start: null, end: null };
      if (what === 'start' || what === 'end') each[what] = Number(at) / 1e9;
      found.set(Number(number), each);
    }
    return found;
  };

  const plans: Plan[] = [];
  const makePlan = (number: number): Plan => {
    const user = Math.floor(random() * users.length);
    const others = plans.filter((plan) => plan.user === user && plan.id !== null);
    const isLimited = chance(0.1);
    const after = others
      .slice(-30)
      .filter(() => chance(0.02))
      .slice(0, 2)
      .map((plan) => ({ plan, isOk: chance(0.5) }));
    return {
      number,
      user,
      count: chance(0.7) ? 1 : 2 + Math.floor(random() * 2),
      seconds: isLimited ? FOREVER_S : 0.1 + random() * 0.7,
      code: chance(0.75) ? 0 : 3,
      isLimited,
      after,
      isCancelled: chance(0.1),
      id: null,
      killed: [],
      touched: 0,
    };
  };

  const fixture = join(import.meta.dirname, 'fixtures/honest_job.py');
  const submit = async (plan: Plan) => {
    const jobs = users[plan.user] as Jobs;
    const before = plan.after.map(({ plan: { number } }) => String(number));
    const words = [
      ...['submit', '-n', String(plan.count)],
      ...(plan.isLimited ? ['--for', LIMIT.text] : []),
      ...plan.after.map(({ plan: { id }, isOk }) => `--after${isOk ? '-ok' : ''}=${id}`),
      ...[
        '--',
        python,
        '-S',
        fixture,
        directory,
        String(plan.number),
        String(plan.seconds),
        String(plan.code),
      ],
      ...before,
    ];
    const { code, stdout, stderr } = await jobs.run(words);
    if (code === 64 && /would never start/.test(stderr)) return; // that it ended badly is seen below
    // The job may have been killed after it was announced, and before its submitter knew.
    const isStruck = code === null && plan.killed.includes('node');
    expect({ code: isStruck ? 0 : code, stderr, words }).toMatchObject({ code: 0, stderr: '' });
    plan.id = Number(stdout);
    expect(plan.id).toBeGreaterThan(0);
    if (!plan.isCancelled) return;
    await pause(random() * 3_000);
    const cancelled = await jobs.run(['cancel', '--grace', '1s', String(plan.id)]);
    expect({ id: plan.id, code: cancelled.code }).toEqual({ id: plan.id, code: 0 });
  };

  let isOver = false;
  const strikes: Record<string, number> = {};
  const strike = async () => {
    const victims = (users[0] as Jobs).processes().flatMap((pid) => {
      const found = kindOf(pid, fixture);
      return found === null ? [] : [{ pid, ...found }];
    });
    const victim = victims[Math.floor(random() * victims.length)];
    const plan = plans[victim?.number ?? -1];
    if (victim === undefined || plan === undefined) return;
    const { pid, kind } = victim;
    plan.touched = Number.POSITIVE_INFINITY;
    // With keeper and front killed, no process is left that could keep a time limit, and the command runs for ten minutes.
    const mustLive = plan.isLimited && plan.killed.includes('keeper');
    const isKill = kind !== 'submit' && !mustLive && chance(0.3);
    if (isKill) plan.killed.push(kind);
    if (sendSignal(pid, isKill ? 'SIGKILL' : 'SIGSTOP')) {
      const name = `${isKill ? 'killed' : 'suspended'} ${kind}`;
      strikes[name] = (strikes[name] ?? 0) + 1;
    }
    if (!isKill) {
      await pause(random() * 1_500);
      sendSignal(pid, 'SIGCONT');
    }
    plan.touched = clock();
  };
  const striking = Array.from({ length: 3 }, async () => {
    while (!isOver) {
      await strike();
      await pause(random() * 400);
    }
  });

  let late = 0;
  const wrong: object[] = [];
  const list = async (user: number) => {
    const before = noted();
    const known = plans.filter((plan) => plan.user === user && plan.id !== null);
    const from = clock();
    const listed: ListedJob[] = await (users[user] as Jobs).list();
    const to = clock();
    const after = noted();
    for (const plan of known) {
      const job = listed.find(({ id }) => id === plan.id);
      if (job === undefined) wrong.push({ plan, why: 'not listed' });
      // A job whose processes are suspended, or that goes on without them, may be later.
      else if (plan.touched < from - MAX_LATE_S && plan.killed.length === 0 && !plan.isCancelled) {
        const { start = null, end = null } = before.get(plan.number) ?? {};
        const now = after.get(plan.number);
        const behind = (at: number | null) => (at === null ? 0 : Math.max(0, from - at));
        if (job.state === 'waiting') late = Math.max(late, behind(start));
        if (job.state === 'running') late = Math.max(late, behind(end));
        const isOver = ['completed', 'failed', 'lost'].includes(job.state);
        const isTooEarly = isOver && !plan.isLimited && now?.end == null;
        const isImpossible = job.state === 'lost' || (job.state === 'cancelled' && now?.start != null);
        if (isTooEarly || isImpossible) wrong.push({ plan, job, start, end, to });
      }
    }
    return listed;
  };
  const looking = users.map(async (_, user) => {
    while (!isOver) {
      await list(user);
      await pause(300);
    }
  });

  const pool = Array.from({ length: SUBMITTERS }, async () => {
    while (plans.length < JOBS) {
      const plan = makePlan(plans.length);
      plans.push(plan);
      await submit(plan);
    }
  });
  await Promise.all(pool);
  let lists: ListedJob[][] = [];
  const isEnded = ({ state }: ListedJob) => state !== 'waiting' && state !== 'running';
  await until(
    async () => {
      await pause(200);
      lists = await Promise.all(users.map((_, user) => list(user)));
      return lists.every((listed) => listed.every(isEnded));
    },
    () => `the end of ${JSON.stringify(lists.flat().filter((job) => !isEnded(job)))}`,
    JOBS * 500 + 60_000,
  );
  isOver = true;
  await Promise.all([...striking, ...looking]);
  lists = await Promise.all(users.map((_, user) => list(user)));

  const text = journal();
  expect(text.match(/^violation .*$/gm)).toBeNull();
  expect(overlaps(text)).toEqual([]);
  const truth = noted();
  const stateOf = (plan: Plan): ListedJob => lists[plan.user]?.find(({ id }) => id === plan.id);
  const isOk = (plan: Plan) => stateOf(plan).state === 'completed';
  const ends: Record<string, number> = {};
  for (const plan of plans) {
    const starts = text.match(new RegExp(`^start ${plan.number} `, 'gm'))?.length ?? 0;
    const { start = null, end = null } = truth.get(plan.number) ?? {};
    const isHindered = plan.after.some((each) => each.isOk && !isOk(each.plan));
    const about = `seed ${seed}: ${JSON.stringify({ ...plan, after: plan.after.map((each) => each.plan.id) })}`;
    if (plan.id === null) {
      expect({ starts, isHindered }, about).toEqual({ starts: 0, isHindered: true });
      continue;
    }
    const { state, exitCode } = stateOf(plan);
    const told = `${about} ${JSON.stringify(stateOf(plan))}`;
    ends[state] = (ends[state] ?? 0) + 1;
    expect(starts, told).toBeLessThanOrEqual(1);
    for (const { plan: before } of plan.after) {
      const ended = truth.get(before.number)?.end ?? null;
      if (start !== null && ended !== null) expect(start, told).toBeGreaterThan(ended);
    }
    if (isHindered) expect(starts, told).toBe(0);
    const expected = plan.isLimited
      ? { state: 'failed', exitCode: 124 }
      : { state: plan.code === 0 ? 'completed' : 'failed', exitCode: plan.code };
    const isWhole = !plan.killed.some((kind) => kind === 'node' || kind === 'waiter');
    // Front and keeper stand in for each other, once the command runs.
    const isKept = isWhole && (plan.killed.length === 0 || (plan.killed.length === 1 && start !== null));
    if (state === 'lost') expect(isKept, told).toBe(false);
    else if (state === 'cancelled') expect(plan.isCancelled || isHindered, told).toBe(true);
    else {
      expect({ state, exitCode }, told).toEqual(expected);
      expect(start, told).not.toBeNull();
      if (!plan.isLimited) expect(end, told).not.toBeNull();
    }
    if (isKept && !plan.isCancelled && !isHindered) expect({ state, exitCode }, told).toEqual(expected);
  }
  console.log(`seed ${seed}:`, strikes, ends, `states late by up to ${late.toFixed(2)} s`);
  expect(wrong).toEqual([]);
  expect(late).toBeLessThan(MAX_LATE_S);
  // Which kinds of processes they met is chance.
  expect(Object.values(strikes).reduce((sum, count) => sum + count, 0)).toBeGreaterThan(4);

  // Nothing is left
  expect((users[0] as Jobs).processes()).toEqual([]);
  expect(machine.allProcesses()).toEqual(Array(GPUS).fill([]));
  expect(await machine.states()).toEqual(Array(GPUS).fill('free'));
  expect((await machine.run(['flock', '--nonblock', join(directory, uuidOf(0)), 'true'])).code).toBe(0);
});

/** A process of a job, and the number among its command's arguments; null: of no job, or the command itself. */
function kindOf(pid: number, fixture: string): { kind: string; number: number } | null {
  const path = `/proc/${pid}/cmdline`;
  if (!isAlive(pid) || processState(pid) === 'T' || !existsSync(path)) return null;
  let words: string[] = [];
  try {
    words = readFileSync(path, 'latin1').split('\0');
  } catch {
    return null;
  }
  const at = words.indexOf(fixture);
  const [program = ''] = words;
  if (at < 0 || /python/.test(program)) return null;
  const kind = program.endsWith('gpu-owner-keeper')
    ? words[1] === 'wait'
      ? 'waiter'
      : 'keeper'
    : isSessionLeader(pid)
      ? 'node'
      : 'submit';
  return { kind, number: Number(words[at + 2]) };
}

/** A job leaves the session of its submitter once it is announced. */
function isSessionLeader(pid: number): boolean {
  try {
    const [, , , session] = readFileSync(`/proc/${pid}/stat`, 'latin1')
      .replace(/^.*\) /s, '')
      .split(' ');
    return Number(session) === pid;
  } catch {
    return false;
  }
}

/** GPUs that two commands noted to have at once. */
function overlaps(journal: string): string[] {
  const holders = new Map<string, string>();
  const found: string[] = [];
  const gpusOf = new Map<string, string[]>();
  for (const line of journal.split('\n')) {
    const [what, number = '', , , rest = ''] = line.split(' ');
    if (what === 'start') {
      gpusOf.set(number, rest.split(','));
      for (const gpu of rest.split(',')) {
        // One that was killed or whose time was up notes no end: its lock has testified.
        holders.set(gpu, number);
      }
    }
    if (what === 'end') {
      for (const gpu of gpusOf.get(number) ?? [])
        if (holders.get(gpu) !== number) found.push(`${gpu}: ${number}, ${holders.get(gpu)}`);
    }
  }
  return found;
}
