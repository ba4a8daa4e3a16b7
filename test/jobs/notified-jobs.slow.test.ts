// Jobs in the background that tell their user of their start and end, from their submission on.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { pidIn } from '../support/keeper.ts';
import type { Machine } from '../support/machine.ts';
import { isAlive } from '../support/processes.ts';
import { until } from '../support/time.ts';
import { Jobs, jobTest } from './background.ts';

let machine: Machine;
let jobs: Jobs;
let told: string;
jobTest((opened) => {
  machine = opened.machine;
  jobs = new Jobs(machine, { env: { XDG_CONFIG_HOME: join(machine.directory, 'config') } });
  told = join(machine.directory, 'told');
  mkdirSync(join(machine.directory, 'config/gpu-owner'), { recursive: true });
});

function configure(text: string): void {
  writeFileSync(join(machine.directory, 'config/gpu-owner/config.yaml'), text, { mode: 0o600 });
}

/** A line for each turn, in `told`. */
const COMMAND = () =>
  `notifyCommand: [sh, -c, 'echo "$GPU_OWNER_JOB_ID $GPU_OWNER_EVENT $GPU_OWNER_JOB_EXIT_CODE" >> ${told}']\n`;

const lines = () => (existsSync(told) ? readFileSync(told, 'utf8').trimEnd().split('\n') : []);
const soon = (expected: string[]) =>
  until(
    () => lines().length >= expected.length,
    () => `${JSON.stringify(expected)}; told: ${JSON.stringify(lines())}`,
  ).then(() => expect(lines().sort()).toEqual(expected.sort()));

test('notifications tell of a job that completes, and of one that fails', async () => {
  configure(COMMAND());
  const ids = [
    await jobs.submit(['--notify', '--', 'true']),
    await jobs.submit(['--notify', '--', 'sh', '-c', 'exit 3']),
  ];
  const [first, second] = ids;
  await jobs.wait(...ids);
  await soon([`${first} started `, `${first} completed 0`, `${second} started `, `${second} failed 3`]);
});

test('notifications tell of jobs cancelled while they run, while they wait, and because they can never start', async () => {
  configure(COMMAND());
  const running = await jobs.submit(['--notify', '-n2', '--', 'sleep', '600']);
  await jobs.reach(running, 'running');
  const waiting = await jobs.submit(['--notify', '--', 'true']);
  const following = await jobs.submit(['--notify', '--after-ok', String(waiting), '--', 'true']);
  const cancelled = await jobs.submit(['--notify', '--after', String(running), '--', 'true']);
  expect((await jobs.run(['cancel', String(cancelled), String(waiting)])).code).toBe(0);
  await jobs.reach(following, 'cancelled');
  expect((await jobs.run(['cancel', String(running)])).code).toBe(0);
  await soon([
    `${running} started `,
    `${running} cancelled 143`,
    `${waiting} cancelled `,
    `${following} cancelled 143`,
    `${cancelled} cancelled `,
  ]);
});

test('notifications tell of a job at its time limit, and not of one without --notify', async () => {
  configure(COMMAND());
  const silent = await jobs.submit(['--', 'true']);
  await jobs.wait(silent);
  const limited = await jobs.submit(['--notify', '--for', '300ms', '--', 'sleep', '600']);
  expect(await jobs.wait(limited)).toBe(124);
  await soon([`${limited} started `, `${limited} failed 124`]);
  expect(existsSync(join(jobs.directoryOf(silent), 'notifications'))).toBe(false);
});

test('notifications tell of the first start and the one end of a job that gives way twice meanwhile', async () => {
  configure(COMMAND());
  const starts = join(machine.directory, 'starts');
  const go = join(machine.directory, 'go');
  const count = () => (existsSync(starts) ? readFileSync(starts, 'utf8').split('\n').length - 1 : 0);
  const script = `echo $GPU_OWNER_RESTART >>${starts}; while ! [ -e ${go} ]; do sleep 0.05; done`;
  const id = await jobs.submit(['--notify', '--preemptible', '-n2', '--', 'sh', '-c', script]);
  for (const started of [1, 2]) {
    await until(() => count() === started);
    expect((await jobs.run(['run', '--', 'true'])).code).toBe(0);
  }
  await until(() => count() === 3);
  writeFileSync(go, '');
  expect(await jobs.wait(id)).toBe(0);
  expect(await jobs.find(id)).toMatchObject({ state: 'completed', preempted: 2 });
  // The turns of a later job come last: by then all is told.
  const later = await jobs.submit(['--notify', '--', 'true']);
  await soon([`${id} started `, `${id} completed 0`, `${later} started `, `${later} completed 0`]);
});

test('a command that can not be told of, or hangs, holds no job up', async () => {
  configure(`notifyCommand: [/nonexistent/program]\n`);
  const first = await jobs.submit(['--notify', '--', 'true']);
  expect(await jobs.wait(first)).toBe(0);
  const file = join(jobs.directoryOf(first), 'notifications');
  const log = () => (existsSync(file) ? readFileSync(file, 'utf8') : '');
  await until(() => log().split('\n').length > 2);
  expect(log()).toMatch(
    / completed: '\/nonexistent\/program' was not notified: it can't be started \(ENOENT\)\n$/,
  );
  const hanging = join(machine.directory, 'hanging');
  // The command hangs as long as its file is there.
  const hang = `echo $$ >>${hanging}; while [ -e ${hanging} ]; do sleep 0.1; done`;
  configure(`notifyCommand: [sh, -c, '${hang}']\n`);
  const second = await jobs.submit(['--notify', '-n2', '--', 'true']);
  expect(await jobs.wait(second)).toBe(0);
  const pid = await pidIn(machine.directory, 'hanging');
  // The command has nothing of the job: no GPUs, no lock, no output.
  await until(() => jobs.processes().length === 0);
  expect(await machine.states()).toEqual(['free', 'free']);
  expect(isAlive(pid)).toBe(true);
});

test("the webhook's URL is in no process, and in no file of the job", async () => {
  const events: string[] = [];
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (chunk) => (body += chunk));
    request.on('end', () => {
      events.push(JSON.parse(body).event);
      response.end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const { port } = server.address() as AddressInfo;
    configure(`notifyWebhook: http://127.0.0.1:${port}/a-secret-of-the-hook\n`);
    const words = ['sh', '-c', 'env; cat /proc/*/cmdline /proc/*/environ 2>/dev/null; exit 0'];
    const id = await jobs.submit(['--notify', '--', ...words]);
    expect(await jobs.wait(id)).toBe(0);
    await until(() => events.length === 2);
    expect(events.sort()).toEqual(['completed', 'started']);
    const directory = jobs.directoryOf(id);
    for (const name of readdirSync(directory))
      expect([name, readFileSync(join(directory, name), 'latin1').includes('secret-of-the')]).toEqual([
        name,
        false,
      ]);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test('without a configuration, --notify is refused, and says what to write', async () => {
  const { code, stderr, stdout } = await jobs.run(['submit', '--notify', '--', 'true']);
  expect([code, stdout]).toEqual([64, '']);
  expect(stderr).toMatch(
    /^gpu-owner: --notify: nothing says how to tell you\. Write .*config\.yaml .*notifyCommand/,
  );
  expect(await jobs.list()).toEqual([]);
});
