import { afterEach, beforeEach, expect, test } from 'vitest';
import { command, finished, Machine, output } from '../support/machine.ts';
import { isAlive } from '../support/processes.ts';
import { Waiters } from './waiters.ts';

let machine: Machine;
let waiters: Waiters;
beforeEach(() => {
  machine = new Machine(2);
  waiters = new Waiters(machine);
});
afterEach(() => machine.close());

/** A time of day, as it is shown. */
const MOMENT = '[-\\d: ]+(?:yesterday|tomorrow)?';
const HOUR_MS = 3_600_000;
const WITHOUT_PLACEHOLDER = ['--placeholder', 'none'];

/** A job of `sleep` that has its GPUs. */
async function sleeper(...options: string[]) {
  const script = 'echo started; exec sleep 600';
  const job = machine.startCommand(['run', ...WITHOUT_PLACEHOLDER, ...options, '--', 'sh', '-c', script]);
  await output(job, /started/);
  return job;
}

/** Makes an attempt, and one with a limit twice as long wherever a busy machine has reached the limit before the test was ready for it. */
async function longEnough(attempt: (limit: string) => Promise<boolean>): Promise<void> {
  for (let seconds = 2; !(await attempt(`${seconds}s`)); seconds *= 2) expect(seconds).toBeLessThan(20);
}

test('the command ends at its limit with exit code 124, and its GPUs can be claimed at once', async () => {
  const job = await machine.runCommand(['run', '-n', '2', '--for', '1s', '--', 'sleep', '600']);
  expect(job).toMatchObject({ code: 124, stdout: '' });
  expect(job.stderr).toBe(
    'gpu-owner: the time limit of 1s is over: sleep and all its processes get SIGTERM, and after 30 s SIGKILL\n',
  );
  const next = await machine.runCommand(['run', '-n', '2', '--no-wait', '--', 'true']);
  expect(next).toMatchObject({ code: 0, stderr: '' });
});

test('--signal comes before the limit', async () => {
  const script = 'trap "echo usr1; exit 3" USR1; echo ready; while :; do sleep 0.02; done';
  const options = ['--for', '1h', '--signal', 'usr1@59m55s'];
  expect(await machine.runCommand(['run', ...options, '--', 'sh', '-c', script])).toMatchObject({
    code: 3,
    stdout: 'ready\nusr1\n',
  });
});

test('status says until when a GPU is leased, and claims that are refused say it, too', async () => {
  await sleeper('--for', '1h', '-n', '1');
  await sleeper('-n', '1');
  const [limited, unlimited] = (await machine.status()).map(({ lease }) => lease);
  const runs = Date.parse(limited.until) - Date.parse(limited.since);
  expect(runs).toBeGreaterThanOrEqual(HOUR_MS);
  expect(runs).toBeLessThan(HOUR_MS + 30_000);
  expect(unlimited).not.toHaveProperty('until');
  const { stdout } = await machine.runCommand(['status']);
  expect(stdout).toMatch(new RegExp(`leased by \\S+ since ${MOMENT} until ${MOMENT} \\(pid \\d+: sh`));
  for (const row of stdout.split('\n')) expect(row.length).toBeLessThanOrEqual(80);
  const { code, stderr } = await machine.runCommand(['run', '--no-wait', '--', 'true']);
  expect(code).toBe(75);
  expect(stderr).toMatch(new RegExp(` GPU 0: leased by \\S+ since ${MOMENT} until `));
});

test('queue says when a request gets its GPUs at the latest, where limits tell it', async () => {
  await sleeper('--for', '1h', '--devices', '0');
  const endless = await sleeper('--devices', '1');
  const wait = (...options: string[]) =>
    machine.startCommand(['run', ...WITHOUT_PLACEHOLDER, ...options, '--', 'true']);
  wait('--for', '2h');
  await waiters.untilWaiting(1);
  wait();
  await waiters.untilWaiting(2);
  wait();
  await waiters.untilWaiting(3);
  const hoursFromNow = async () =>
    (await waiters.queue()).map(({ latestStart }) =>
      latestStart === null ? null : Math.round((Date.parse(latestStart) - Date.now()) / HOUR_MS),
    );
  expect(await hoursFromNow()).toEqual([1, 3, null]);
  expect((await waiters.queue())[0]).toMatchObject({
    latestStart: expect.stringMatching(/:00\.000Z$/),
    waitUntil: null,
  });
  const { stdout } = await machine.runCommand(['queue']);
  expect(stdout).toMatch(
    new RegExp(`^ {2}1\\. .*\\n {5}needs a GPU: \\S+ has 2; by ${MOMENT} at the latest\\n {5}GPU 0: leased`),
  );
  expect(stdout).toMatch(/\n {2}3\. .*\n {5}after 2 requests of \S+\n {5}GPU 0: leased/);
  const said = JSON.parse((await machine.runCommand(['jobs', '--json'])).stdout)
    .filter(({ state }: { state: string }) => state === 'waiting')
    .map(({ reason }: { reason: string }) => reason);
  expect(said).toEqual((await waiters.queue()).map(({ why }) => why));
  expect(endless.exitCode).toBe(null);
});

test('a limit of a job ends what runs under an inner claim, too', async () => {
  const inner = [process.execPath, command, 'run', '--', 'sh', '-c', '"echo \\$\\$; exec sleep 600"'].join(
    ' ',
  );
  await longEnough(async (limit) => {
    const job = machine.startCommand(['run', '--for', limit, '--', 'sh', '-c', `${inner}; true`]);
    const { code, stdout } = await finished(job);
    expect(code).toBe(124);
    if (stdout === '') return false;
    expect(isAlive(Number(stdout))).toBe(false);
    return true;
  });
  expect(await machine.states()).toEqual(['free', 'free']);
});
