// Files that show users of other locking conventions that a GPU is taken: the keeper removes them before the lease ends, if they
// are still ours.
import { existsSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import {
  complete,
  fixture,
  keeperOf,
  launch,
  Probe,
  pidIn,
  python,
  restingKeeperOf,
  until,
  workspace,
} from '../support/keeper.ts';
import { sendSignal } from '../support/processes.ts';

const probe = new Probe();
const TOKEN = '123456789';

interface Marked {
  directory: string;
  lease: string;
  text: string;
  pid: string;
  launcher: string[];
}

/** The PID in the file is the launcher's, which becomes the front: it is not known before, so it is written by --setup. */
function marked(): Marked {
  const { directory, leases } = workspace();
  const text = join(directory, 'marker.json');
  const pid = join(directory, 'marker.lock');
  writeFileSync(text, `{"generation": ${TOKEN}}\n`);
  writeFileSync(pid, '');
  const setup = `open(${JSON.stringify(pid)}, "r+").write(str(os.getpid()).ljust(11) + "\\n")`;
  const launcher = ['--marker', `${text}=${TOKEN}`, '--pid-marker', `${pid}=`, '--setup', setup];
  return { directory, lease: leases[0] as string, text, pid, launcher };
}

const told = (path: string): number => Number(readFileSync(path, 'utf8').trim());

test('markers live as long as the job, and name the PID of its keeper', async () => {
  const { directory, lease, text, pid, launcher } = marked();
  // The keeper is no child of the front once the command has ended.
  const go = join(directory, 'go');
  const script = `"$@"; while [ ! -e "${go}" ]; do sleep 0.02; done`;
  const command = ['sh', '-c', script, 'sh', python, fixture('job.py'), directory, 'daemon'];
  const running = launch({ leases: [lease], launcher, command });
  const keeper = await keeperOf(running.pid);
  await until(() => told(pid) === keeper, 'the PID of the keeper');
  writeFileSync(go, '');
  expect((await running.exited).code).toBe(0); // the command has ended, its daemon has not
  expect([existsSync(text), told(pid)]).toEqual([true, keeper]);
  sendSignal(await pidIn(directory, 'daemon-child'), 'SIGKILL');
  await probe.free(lease);
  expect([existsSync(text), existsSync(pid)]).toEqual([false, false]);
});

test('if the keeper is killed, the front writes its own PID into markers, and removes them at the end', async () => {
  const { lease, text, pid, launcher } = marked();
  const running = launch({ leases: [lease], launcher, command: ['sh', '-c', 'echo up; exec sleep 60'] });
  await running.printed(/up/);
  const keeper = await restingKeeperOf(running.pid);
  await until(() => told(pid) === keeper, 'the PID of the keeper');
  sendSignal(keeper, 'SIGKILL');
  await until(() => told(pid) === running.pid, 'the PID of the front');
  expect(existsSync(text)).toBe(true);
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
  expect([existsSync(text), existsSync(pid)]).toEqual([false, false]);
});

test('hold removes its markers as well', async () => {
  const { lease, text, pid, launcher } = marked();
  const running = launch({ mode: 'hold', leases: [lease], launcher });
  await until(() => told(pid) === running.pid, 'its PID');
  running.child.stdin?.end();
  expect((await running.exited).code).toBe(0);
  expect([existsSync(text), existsSync(pid)]).toEqual([false, false]);
});

test('a command that can’t be started leaves no markers', async () => {
  const { lease, text, pid, launcher } = marked();
  expect((await complete({ leases: [lease], launcher, command: ['/nonexistent'] })).code).toBe(127);
  expect([existsSync(text), existsSync(pid)]).toEqual([false, false]);
});

test('the command doesn’t inherit markers', async () => {
  const { lease, launcher } = marked();
  const { stdout } = await complete({ leases: [lease], launcher, command: ['ls', '-l', '/proc/self/fd'] });
  expect(stdout).toContain('lease-0');
  expect(stdout).not.toContain('marker');
});

const CHANGES: Record<string, (path: string) => void> = {
  'another file has the name': (path) => {
    writeFileSync(`${path}.new`, readFileSync(path));
    renameSync(`${path}.new`, path);
  },
  'it was written anew': (path) => writeFileSync(path, '4194304'),
  'it was emptied': (path) => writeFileSync(path, ''),
  'a link has the name': (path) => {
    renameSync(path, `${path}.moved`);
    symlinkSync(`${path}.moved`, path);
  },
};

test.each(Object.entries(CHANGES))(
  'a marker that isn’t ours any longer is left alone: %s',
  async (_, change) => {
    const { lease, text, pid, launcher } = marked();
    const running = launch({ leases: [lease], launcher, command: ['sleep', '60'] });
    const keeper = await keeperOf(running.pid);
    await until(() => told(pid) === keeper, 'the PID of the keeper');
    for (const path of [text, pid]) change(path);
    const before = [text, pid].map((path) => readFileSync(path, 'utf8'));
    running.kill('SIGTERM');
    await running.exited;
    expect([text, pid].map((path) => readFileSync(path, 'utf8'))).toEqual(before);
  },
);

test('a marker that was removed is no trouble', async () => {
  const { lease, text, pid, launcher } = marked();
  const running = launch({ leases: [lease], launcher, command: ['sleep', '60'] });
  await keeperOf(running.pid);
  for (const path of [text, pid]) rmSync(path);
  running.kill('SIGTERM');
  expect((await running.exited).code).toBe(143);
});

test.each([
  ['--marker', '0:2:200:x'],
  ['--marker', `200:${'9'.repeat(30)}:200:x`],
  ['--marker', '200:2:200:'],
  ['--pid-marker', '200:2:200:../x'],
])('%s %s is refused', async (option, value) => {
  const { leases } = workspace();
  const { code, stderr } = await complete({ leases, options: [option, value], command: ['true'] });
  expect([code, stderr]).toEqual([64, expect.stringContaining(option)]);
});
