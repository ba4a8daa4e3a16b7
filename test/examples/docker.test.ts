// examples/docker.sh, with a stand-in for Docker whose containers, too, belong to a daemon.
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  finished,
  launcher,
  Machine,
  output,
  python,
  root,
  signalAll,
  until,
  uuidOf,
} from '../support/machine.ts';

const script = join(root, 'examples/docker.sh');
const fixtures = join(import.meta.dirname, 'fixtures');

let machine: Machine;
let env: Record<string, string>;

beforeEach(async () => {
  machine = new Machine(3);
  const state = join(machine.directory, 'docker');
  mkdirSync(state);
  env = { PATH: `${fixtures}:${process.env.PATH}`, FAKE_DOCKER: state };
  await output(machine.start([python, join(fixtures, 'docker'), 'daemon'], { env }), /ready/);
});
afterEach(() => machine.close());

const start = (...words: string[]) =>
  machine.start([launcher, 'run', '-n', '2', '--', script, '--shm-size=8g', 'IMAGE', ...words], { env });

function calls(): { words: string[]; pid: number }[] {
  try {
    const lines = readFileSync(join(env.FAKE_DOCKER as string, 'calls'), 'utf8')
      .split('\n')
      .slice(0, -1);
    return lines.map((line) => JSON.parse(line));
  } catch {
    return [];
  }
}

const clients = (verb: string) => calls().filter(({ words }) => words[0] === verb);
const leased = async () => (await machine.states()).filter((state) => state === 'leased').length;

test('the container gets the claimed GPUs, and the script its output and exit code', async () => {
  const { code, stdout, stderr } = await finished(start('sh', '-c', 'echo trained; exit 7'));
  expect({ code, stdout, stderr }).toEqual({ code: 7, stdout: 'trained\n', stderr: '' });
  expect(clients('create')[0]?.words.slice(1)).toEqual([
    '--init',
    '--gpus',
    `"device=${uuidOf(0)},${uuidOf(1)}"`,
    '--shm-size=8g',
    'IMAGE',
    'sh',
    '-c',
    'echo trained; exit 7',
  ]);
  expect(clients('rm')).toHaveLength(1);
  expect(await leased()).toBe(0);
});

test('SIGTERM ends the container, then the lease', async () => {
  const child = start('sleep', '60');
  const end = finished(child);
  await until(() => clients('wait').length > 0);
  child.kill('SIGTERM');
  expect((await end).code).toBe(143);
  expect(await leased()).toBe(0);
});

test('the lease outlives clients that are killed, as long as the container lives', async () => {
  const file = join(machine.directory, 'end');
  const end = finished(start('sh', '-c', `until [ -e ${file} ]; do sleep 0.1; done`));
  await until(() => clients('wait').length > 0 && clients('logs').length > 0);
  signalAll(
    [...clients('wait'), ...clients('logs')].map(({ pid }) => pid),
    'SIGKILL',
  );
  await until(() => clients('wait').length > 1);
  expect(await leased()).toBe(2);
  await machine.run(['touch', file]);
  expect((await end).code).toBe(0);
  await until(async () => (await leased()) === 0);
});
