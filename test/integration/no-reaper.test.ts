// In many containers process 1 is no init: orphans that end there stay as zombies, each with a number that is lost.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { because } from '../support/doctor.ts';
import {
  finished,
  launcher,
  Machine,
  output,
  python,
  root,
  UNSHARE,
  until,
  whyNoNamespace,
} from '../support/machine.ts';
import { childrenOf, sendSignal } from '../support/processes.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
const TIMES = SOAK ? 200 : 1;
const noNamespace = whyNoNamespace();

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

interface Report {
  codes: number[];
  zombies: string[];
  living: string[];
}

/** Returns what is left after the commands, each run so many times, in a container whose process 1 collects no orphans. */
async function left(times: number, ...commands: string[][]): Promise<Report> {
  const init = join(import.meta.dirname, 'fixtures/init.py');
  const given = JSON.stringify([times, WAIT_TIMEOUT_MS / 1_000, commands]);
  const { stdout, stderr, code } = await machine.run([...UNSHARE, python, init, given]);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}

const ran = (...codes: number[]) => ({
  codes: expect.arrayContaining(codes) as number[],
  zombies: [],
  living: [],
});

describe.skipIf(noNamespace !== null)(`where process 1 collects no orphans${because(noNamespace)}`, () => {
  const limit = (SOAK ? 60 : 1) * 2 * WAIT_TIMEOUT_MS;

  test('run, hold, status and find leave no process behind', { timeout: limit }, async () => {
    machine.set('gpu=3', 'hidden-memory=20GiB');
    const commands = [
      ['run', '--', 'true'],
      ['run', '--placeholder', 'keep', '--', 'true'],
      ['run', '--placeholder', 'none', '--', 'true'],
      ['run', '--', 'sleep', '0.1'], // outlives its placeholder
      ['run', '--', 'sh', '-c', 'kill -9 $PPID; sleep 0.1'], // the keeper
      ['run', '--', 'no-such-command'],
      ['run', '-n', '5', '--', 'true'],
      ['run', '-n', '4', '--no-wait', '--min-free-memory', '70GiB', '--', 'true'],
      ...[['hold'], ['status'], ['find']],
    ];
    const launched = commands.map((words) => [launcher, ...words]);
    expect(await left(TIMES, ...launched)).toEqual(ran(0, 127, 64, 75));
  });

  test('doctor leaves no process', { timeout: limit }, async () => {
    expect(await left(SOAK ? 20 : 1, [launcher, 'doctor'])).toEqual(ran(0));
  });

  test('exp run leaves no process', { timeout: limit }, async () => {
    const project = join(machine.directory, 'project');
    mkdirSync(project);
    const words = ['exp', 'run', '-n', '2', '--project', project, '--grid', 'x=1..4', '--', 'true', '{x}'];
    expect(await left(SOAK ? 20 : 1, [launcher, ...words])).toEqual(ran(0));
  });

  test('a Python program leaves no process, whether it releases its GPUs or not', {
    timeout: limit,
  }, async () => {
    const claim = [python, join(import.meta.dirname, 'fixtures/claim.py'), join(root, 'python')];
    expect(await left(SOAK ? 100 : 1, claim, [...claim, 'release'])).toEqual(ran(0));
  });

  test('run as process 1 reaps the orphans of processes that enter the container', async () => {
    const child = machine.start([
      ...UNSHARE,
      launcher,
      'run',
      '--',
      'sh',
      '-c',
      'echo ready; exec sleep 1000',
    ]);
    await output(child, /ready/);
    const [inside] = childrenOf(child.pid as number);
    const enter = ['nsenter', '-t', String(inside), '-p', '-m', '--'];
    const { code } = await machine.run([...enter, 'sh', '-c', 'for i in 1 2 3; do (sleep 0.01 &); done']);
    expect(code).toBe(0);
    const names = () => spawnSync(enter[0] as string, [...enter.slice(1), 'ps', '-eo', 'stat,comm']).stdout;
    await until(() => !/^Z|sleep 0/m.test(String(names())));
    expect(String(names())).toMatch(/gpu-owner-keep/);
    sendSignal(inside, 'SIGKILL'); // and with process 1 everything in there
    await finished(child);
  });
});
