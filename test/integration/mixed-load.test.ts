// A mixed load, a day's worth in a few minutes: claims of all kinds, waits, other tools, programs without a claim, kills and
// stops, all at random.
import type { ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import {
  command,
  finished,
  Machine,
  NOBODY,
  pause,
  python,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import {
  directoryOf,
  here,
  makeDirectory,
  NAMES,
  type Name,
  original,
  placeOf,
  startOriginal,
} from '../support/other-tools.ts';

const SECONDS = process.env.GPU_OWNER_SOAK ? 300 : 2;
const SLOWEST_MS = 60_000;
const GPUS = 6;
const ACTORS = 14;
const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const twoUsers = whyNotNobody() === null;

let machine: Machine;
afterEach(() => machine.close());

const chance = (n: number) => Math.floor(Math.random() * n);
const seconds = (most: number) => (Math.random() * most).toFixed(2);

test(`a mixed load with other tools${twoUsers ? ', two users' : ''}, kills and stops: no GPU is held twice, none is lost, nothing is left behind`, {
  timeout: (SECONDS + 90) * 1000,
}, async () => {
  machine = new Machine(GPUS);
  makeDirectory(placeOf(machine, '/tmp'));
  // One of them: they don't honour each other.
  const tool = NAMES[chance(NAMES.length)] as Name;
  const directory = directoryOf(machine, tool);
  const witness = randomBytes(8).toString('hex');
  const gpuOwner = [process.execPath, command];
  const testify = [python, original, 'testify', witness];

  const kinds: (() => ChildProcess)[] = [
    () => ours([process.execPath, fixture('claimant.mjs'), witness, seconds(3), String(1 + chance(3))]),
    () => ours([...gpuOwner, 'run', `--wait=${1 + chance(5)}s`, '--', ...testify, seconds(0.5)]),
    () => ours([...gpuOwner, 'run', '--no-wait', '--placeholder', 'none', '--', ...testify, seconds(0.5)]),
    () => ours([...gpuOwner, 'run', '-n', '2', '--', ...gpuOwner, 'run', '--', ...testify, seconds(0.5)]),
    () => {
      const words = ['loop', tool, directory, witness, String(GPUS), seconds(2)];
      return startOriginal(machine, words, { ...someUser(), umask: '0' });
    },
    () =>
      machine.start([
        join(binaries(), 'gpu-owner-simulator'),
        'occupy',
        String(chance(GPUS)),
        '--memory',
        '1GiB',
      ]),
  ];
  const ours = (words: string[]) =>
    machine.start(words, { ...here(machine), ...someUser(), umask: chance(3) === 0 ? '077' : '022' });
  const someUser = () => (twoUsers && chance(2) === 0 ? { uid: NOBODY } : {});

  const running = new Map<ChildProcess, boolean>(); // whether we have killed it
  const said: string[] = [];
  const failed: string[] = [];
  const start = () => {
    const kind = chance(kinds.length);
    const child = (kinds[kind] as () => ChildProcess)();
    running.set(child, false);
    void finished(child).then(({ code, stdout, stderr }) => {
      said.push(stdout);
      // 75: not available in time; occupants end by being killed.
      if (running.get(child) === false && code !== 0 && code !== 75)
        failed.push(`${kind}: ${code} ${stderr}`);
      running.delete(child);
    });
    if (kind === kinds.length - 1) setTimeout(() => kill(child), 300 + chance(1_500));
  };
  const kill = (child: ChildProcess | undefined) => {
    if (child === undefined || !running.has(child)) return;
    running.set(child, true);
    child.kill('SIGKILL');
  };
  const any = () => [...running.keys()][chance(running.size)];

  const claimed = () =>
    [...said.join('').matchAll(/claims (\d+)/g)].reduce((sum, [, count]) => sum + Number(count), 0);
  // A busy machine may need longer until it was put to the test at all.
  const end = performance.now() + SECONDS * 1000;
  while (performance.now() < end || (claimed() < SECONDS && performance.now() < end + SLOWEST_MS)) {
    while (running.size < ACTORS) start();
    await pause(60);
    const fate = chance(20);
    if (fate === 0) kill(any());
    if (fate === 1) {
      const stopped = any();
      stopped?.kill('SIGSTOP');
      setTimeout(() => stopped?.kill('SIGCONT'), 500 + chance(3_000));
    }
  }
  await until(() => running.size === 0, 'all processes to end', 40_000).catch(async () => {
    const left = [...running].map(
      ([child, killed]) => `${killed ? 'killed ' : ''}${child.spawnargs.join(' ')}`,
    );
    const { stdout } = await machine.runCommand(['queue']);
    throw new Error(`still there: ${left.join('\n')}\n${stdout}\n${JSON.stringify(await machine.states())}`);
  });
  const text = said.join('');
  expect(text.match(/violation: .*/g)).toBeNull();
  expect(failed).toEqual([]);
  console.log(`${claimed()} claims by the library and by ${tool}, ${said.length} programs, in ${SECONDS} s`);
  expect(claimed()).toBeGreaterThanOrEqual(SECONDS);

  // A file that a killed writer of another tool has left counts as held for some seconds.
  await until(async () => {
    const { code } = await machine.runCommand(
      ['run', '--no-wait', '-n', String(GPUS), '--', 'true'],
      here(machine),
    );
    return code === 0;
  });
  await until(async () => (await machine.states()).every((state) => state === 'free'));
  for (let gpu = 0; gpu < GPUS; gpu++) expect(machine.processes(gpu)).toEqual([]);
  expect(JSON.parse((await machine.runCommand(['queue', '--json'])).stdout)).toEqual([]);
  // A killed job's own file stays until its user claims again.
  if (twoUsers) {
    const { code } = await machine.runCommand(['run', '--', 'true'], { ...here(machine), uid: NOBODY });
    expect(code).toBe(0);
  }
  for (const name of readdirSync(machine.lockDirectory)) {
    expect(name).toMatch(
      /^(GPU-[0-9a-f-]{36}\.(lease|look|nested-\d)|acquisition\.lock|claims\.count|line(-join)?\.lock|safe-gpu\.sharing|topology-\d+-[0-9a-f]+|turn-\d+|usage)$/,
    );
  }
  for (const name of readdirSync(directory).filter((each) => each.endsWith('.json'))) {
    expect(readFileSync(join(directory, name), 'utf8')).not.toMatch(/gpu-owner/);
  }
});
