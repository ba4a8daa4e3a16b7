// Background jobs whose kept files are damaged, gone, or another user's, or whose disk is full.
import { type ChildProcess, spawnSync } from 'node:child_process';
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { GPUOwnerError } from '../../lib/errors.ts';
import { cancelNamed, waitForNamed } from '../../lib/jobs/named-jobs.ts';
import {
  canMount,
  command,
  Machine,
  NOBODY,
  output,
  python,
  removeDirectory,
  until,
  whyNotNobody,
} from '../support/machine.ts';
import { isAlive, sendSignal } from '../support/processes.ts';
import { Jobs, type ListedJob } from './background.ts';

const noNobody = whyNotNobody();

let machine: Machine;
let jobs: Jobs;
const mounted: string[] = [];
beforeEach(() => {
  machine = new Machine('2');
  jobs = new Jobs(machine);
});
afterEach(async () => {
  await jobs.end();
  for (const path of mounted.splice(0)) spawnSync('umount', ['-l', path]);
  await machine.close();
});

const states = async (from = jobs): Promise<string[]> =>
  (await from.list()).map(({ id, state }: ListedJob) => `${id} ${state}`);

/** Expects an error that is said in a line, and is no accident of the program. */
function expectSentence(
  { code, stderr }: { code: number | null; stderr: string },
  expected: number,
  words: RegExp,
) {
  expect({ code, stderr }).toMatchObject({ code: expected, stderr: expect.stringMatching(words) });
  expect(stderr).not.toMatch(/internal|\n +at /);
}

describe.skipIf(!canMount())('a full disk [needs root, to mount a small one]', () => {
  let disk: string;
  beforeEach(() => {
    disk = machine.stateDirectory();
    mkdirSync(disk);
    expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=256k', 'none', disk]).status).toBe(0);
    mounted.push(disk);
  });
  const fill = () => spawnSync('sh', ['-c', 'cat /dev/zero >"$1"', 'sh', join(disk, 'ballast')]);

  test('submit says so, and leaves nothing', async () => {
    await jobs.submit(['true']);
    await jobs.wait(1);
    fill();
    expectSentence(await jobs.run(['submit', 'true']), 73, /can't be kept in .*space/);
    expectSentence(await jobs.run(['resubmit', '1']), 73, /can't be kept in .*space/);
    expect(await states()).toEqual(['1 completed']);
    expect(readdirSync(join(jobs.directoryOf(1), '..'))).toEqual(['1']);
    expect(jobs.processes()).toEqual([]);
  });

  test('submit says so where not even the first directory can be made', async () => {
    expect(spawnSync('mount', ['-o', 'remount,nr_inodes=1', disk]).status).toBe(0);
    expectSentence(await jobs.run(['submit', 'true']), 73, /can't be kept in .*space/);
    expect(await jobs.list()).toEqual([]);
    expect(jobs.processes()).toEqual([]);
  });

  test('jobs that were submitted before start, end and are cancelled as otherwise', async () => {
    const running = await jobs.submit(['-n2', '--', ...machine.untilFile('go', 5)]);
    const waiting = await jobs.submit(['--', ...machine.untilFile('go', 6)]);
    const following = await jobs.submit(['--after', String(running), '--', 'sh', '-c', 'exit 7']);
    const cancelled = await jobs.submit(['true']);
    const stubborn = await jobs.submit(['--after', String(running), '--', ...machine.untilFile('never')]);
    await jobs.reach(running, 'running');
    await until(async () => (await jobs.find(cancelled)).position === 2);
    fill();
    expect(await states()).toEqual(['1 running', '2 waiting', '3 waiting', '4 waiting', '5 waiting']);
    expect(await jobs.run(['cancel', String(cancelled)])).toMatchObject({ code: 0, stderr: '' });
    machine.touch('go');
    expect(await jobs.wait(running)).toBe(5);
    expect(await jobs.wait(waiting)).toBe(6);
    expect(await jobs.wait(following)).toBe(7);
    await jobs.reach(stubborn, 'running');
    expect(await jobs.run(['cancel', String(stubborn)])).toMatchObject({ code: 0, stderr: '' });
    expect(await states()).toEqual(['1 failed', '2 failed', '3 failed', '4 cancelled', '5 cancelled']);
    expect(await jobs.wait(stubborn)).toBe(143);
    expect((await jobs.run(['jobs'])).stdout).toMatch(/exit code 7/);
  });
});

describe('a restart of the machine', () => {
  const inNewBoot = (words: string[]) => [
    'unshare',
    '--mount',
    'sh',
    '-c',
    'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"',
    join(machine.directory, 'boot'),
    ...words,
  ];

  test.skipIf(!canMount())(
    'loses what ran or waited, and nothing else; `resubmit lost` keeps the order',
    async () => {
      writeFileSync(join(machine.directory, 'boot'), '11111111-2222-4333-8444-555555555555\n');
      const journal = join(machine.directory, 'journal');
      const note = (name: string) => [
        'sh',
        '-c',
        `[ ! -e ${join(machine.directory, 'go')} ] || { echo ${name} >>${journal}; exit; }; sleep 600`,
      ];
      await jobs.submit(['true']);
      await jobs.submit(['--', 'sh', '-c', 'exit 3']);
      expect(await jobs.wait(1, 2)).toBe(3);
      await jobs.submit(['-n2', '--name', 'runs', '--', ...note('runs')]);
      await jobs.reach(3, 'running');
      await jobs.submit(['--name', 'waits', '--', ...note('waits')]);
      await jobs.submit(['--after-ok=runs', '--after=waits', '--', ...note('follows')]);
      await jobs.submit(['--after-ok=5', '--', ...note('last')]);
      await jobs.submit(['--after-ok=5', '--', ...note('never')]);
      expect((await jobs.run(['cancel', '7'])).code).toBe(0);
      await until(async () => (await jobs.find(4)).position === 1);
      await jobs.end();
      removeDirectory(machine.lockDirectory);
      machine.touch('go');

      const run = (args: string[]) => machine.run(inNewBoot([process.execPath, command, ...args]));
      const list = async () => JSON.parse((await run(['jobs', '--all', '--json'])).stdout);
      expect((await list()).map(({ state }: ListedJob) => state)).toEqual([
        'completed',
        'failed',
        ...Array(4).fill('lost'),
        'cancelled',
      ]);
      expect(await run(['resubmit', 'lost'])).toMatchObject({
        code: 0,
        stderr: '',
        stdout: '8\n9\n10\n11\n',
      });
      expect((await list()).slice(7).map(({ after }: ListedJob) => [...after].sort())).toEqual([
        [],
        [],
        [8, 9],
        [10],
      ]);
      expect((await run(['wait', '8', '9', '10', '11'])).code).toBe(0);
      const order = readFileSync(journal, 'utf8').trim().split('\n');
      expect(order.slice(0, 2).sort()).toEqual(['runs', 'waits']);
      expect(order.slice(2)).toEqual(['follows', 'last']);
      expect((await run(['resubmit', 'lost'])).stdout).toBe('');
    },
  );
});

describe('a lock directory whose files are removed', () => {
  test('states stay right, jobs are cancelled, and dependants wait', async () => {
    const first = await jobs.submit(['-n2', '--', ...machine.untilFile('go', 4)]);
    await jobs.reach(first, 'running');
    const before = await jobs.submit(['--after', String(first), '--', ...machine.untilFile('after', 0)]);
    const waiting = await jobs.submit(['true']);
    await until(async () => (await jobs.find(waiting)).position === 1);
    removeDirectory(machine.lockDirectory);
    expect(await states()).toEqual(['1 running', '2 waiting', '3 waiting']);
    const after = await jobs.submit(['--after', String(first), '--', ...machine.untilFile('after', 0)]);
    await until(async () => existsSync(machine.lockDirectory)); // another file now
    expect(await jobs.run(['cancel', String(waiting)])).toMatchObject({ code: 0, stderr: '' });
    expect((await jobs.run(['wait', '--timeout', '700ms', String(after)])).code).toBe(75);
    expect(await states()).toEqual(['1 running', '2 waiting', '3 cancelled', '4 waiting']);
    machine.touch('go');
    expect(await jobs.wait(first)).toBe(4);
    machine.touch('after');
    expect(await jobs.wait(before, after)).toBe(0);
  });

  test('a command whose keeper was killed too is seen and ended', async () => {
    const id = await jobs.submit(['--', ...machine.untilFile('go')]);
    await jobs.reach(id, 'running');
    const record = () => readFileSync(join(jobs.directoryOf(id), 'job'), 'latin1').slice(4096, 4608);
    const end = () => JSON.parse(record());
    await until(() => record().startsWith('{') && end().pid > 0);
    removeDirectory(machine.lockDirectory);
    for (const pid of [end().front, end().keeper]) sendSignal(pid, 'SIGKILL');
    await until(() => !isAlive(end().front) && !isAlive(end().keeper));
    expect(await jobs.find(id)).toMatchObject({ state: 'running' });
    expect((await jobs.run(['cancel', String(id)])).code).toBe(0);
    expect(isAlive(end().pid)).toBe(false);
    expect(await jobs.find(id)).toMatchObject({ state: 'cancelled' });
  });
});

describe('the state directory', () => {
  test('needs no locks', async () => {
    const trace = join(machine.directory, 'trace');
    const words = ['strace', '-f', '-y', '-e', 'trace=fcntl,flock', '-o', trace];
    const run = (args: string[]) => machine.run([...words, process.execPath, command, ...args]);
    if (spawnSync('strace', ['-V']).status !== 0) return;
    // strace ends with the job's last process.
    await run(['submit', '--', 'sh', '-c', 'exit 3']);
    expect(await states()).toEqual(['1 failed']);
    const text = readFileSync(trace, 'latin1');
    expect(text).toMatch(/LK/);
    expect(text.split('\n').filter((line) => /LK|flock/.test(line) && line.includes('/state/'))).toEqual([]);
  });

  test.skipIf(noNobody)('may become unreadable while jobs live', async () => {
    const own = new Jobs(machine, { uid: NOBODY });
    expect(await own.submit(['-n2', '--', ...machine.untilFile('go', 3)])).toBe(1);
    await own.reach(1, 'running');
    expect(await own.submit(['--', ...machine.untilFile('go', 4)])).toBe(2);
    expect(await own.submit(['--after', '1', '--', 'sh', '-c', 'exit 5'])).toBe(3);
    await until(async () => (await own.find(2)).position === 1);
    const directory = join(own.directoryOf(1), '..');
    chmodSync(directory, 0);
    for (const words of [['jobs'], ['wait', '1'], ['logs', '1'], ['cancel', '1'], ['submit', 'true']]) {
      const { code, stderr } = await own.run(words);
      expect({ words, code }).toEqual({
        words,
        code: expect.toSatisfy((code) => code === 64 || code === 73),
      });
      expect(stderr).toMatch(/permission denied|no job/);
    }
    machine.touch('go');
    await until(() => own.processes().length === 0);
    chmodSync(directory, 0o700);
    expect((await own.list()).map(({ state, exitCode }: ListedJob) => [state, exitCode])).toEqual([
      ['failed', 3],
      ['failed', 4],
      ['failed', 5],
    ]);
  });

  test('may be removed while jobs live: they go on, and their GPUs are free afterwards', async () => {
    const told = join(machine.directory, 'told');
    await jobs.submit(['-n2', '--', ...machine.untilFile('go', 3, `trap 'echo 1 >>${told}' EXIT; `)]);
    await jobs.reach(1, 'running');
    await jobs.submit(['--', 'sh', '-c', `echo 2 >>${told}`]);
    await until(async () => (await jobs.find(2)).position === 1);
    removeDirectory(machine.stateDirectory());
    expect((await jobs.list()).map(({ id, state }: ListedJob) => [id, state])).toEqual([
      [null, 'running'],
      [null, 'waiting'],
    ]);
    machine.touch('go');
    await until(() => jobs.processes().length === 0);
    expect(readFileSync(told, 'utf8')).toBe('1\n2\n');
    expect(await machine.states()).toEqual(['free', 'free']);
  });
});

describe.skipIf(noNobody)('another user in the lock directory', () => {
  const mine = () => `jobs-${process.geteuid?.()}`;
  const as = async (uid: number, script: string) => {
    const { code, stderr } = await machine.run(['sh', '-c', script], { uid, cwd: machine.lockDirectory });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  };

  test('makes files, links, directories with the names of the locks first, and hinders nobody', async () => {
    await machine.runCommand(['run', 'true']); // makes the directory
    const name = mine();
    await as(
      NOBODY,
      `touch ${name}; chmod 666 ${name}; mkdir ${name}.1; mkfifo -m 666 ${name}.2; ln -s /etc/passwd ${name}.3; touch own; chmod 666 own; ln own ${name}.4`,
    );
    for (const file of [name, `${name}.4`]) {
      const fixture = join(import.meta.dirname, '../integration/fixtures/locker.py');
      const words = [python, fixture, join(machine.lockDirectory, file), 'ofd', '0', '0'];
      await output(machine.start(words, { uid: NOBODY }), /locked/);
    }
    const id = await jobs.submit(['--', ...machine.untilFile('go', 2)]);
    await jobs.reach(id, 'running');
    machine.touch('go');
    expect(await jobs.wait(id)).toBe(2);
  });
});

describe('a record in which anything may stand', () => {
  const innocents: ChildProcess[] = [];
  afterEach(() => {
    for (const child of innocents.splice(0)) child.kill('SIGKILL');
  });
  /** A process that notes every signal that it gets. */
  const innocent = async () => {
    const source = `import signal, sys, time
for number in set(range(1, 65)) - {9, 19, 32, 33}:
    signal.signal(number, lambda got, _: print(f"signal {got}", flush=True))
print("ready", flush=True)
while True: time.sleep(1000)`;
    const child = machine.start([python, '-S', '-c', source]);
    innocents.push(child);
    let said = '';
    child.stdout?.on('data', (text) => (said += text));
    await until(() => said === 'ready\n');
    return { pid: child.pid as number, said: () => said };
  };
  const asked = (id: number) =>
    JSON.parse(readFileSync(join(jobs.directoryOf(id), 'job'), 'latin1').slice(5120));
  const block = (value: object, size: number) => `${JSON.stringify(value)}`.padEnd(size - 1).concat('\n');
  const record = (request: unknown, progress: object, end: object) =>
    block(progress, 4096) + block(end, 512) + block({}, 512) + JSON.stringify(request);

  test('no innocent process is ever signalled, and every command answers', async () => {
    const good = await jobs.submit(['--', ...machine.untilFile('go')]);
    await jobs.reach(good, 'running');
    const ended = await jobs.submit(['true']);
    await jobs.wait(ended);
    const { pid, said } = await innocent();
    const times = { started: Date.now(), ended: null, exitCode: null };
    const pids = { pid, keeper: pid, front: pid };
    const request = asked(ended);
    const living = asked(good).lock;
    const odd: (string | Buffer | ((path: string) => void))[] = [
      '',
      'x',
      Buffer.alloc(70_000, 0xff),
      ' '.repeat(5120),
      `${' '.repeat(5120)}{"id":ID}`,
      `${' '.repeat(5120)}[]`,
      readFileSync(join(jobs.directoryOf(ended), 'job'), 'latin1').slice(0, 5200),
      (path) => spawnSync('mkfifo', [path]),
      (path) => symlinkSync('/etc/passwd', path),
      (path) => symlinkSync(join(jobs.directoryOf(good), 'job'), path),
      (path) => mkdirSync(path),
      record(request, { ...times, ...pids }, { ...times, ...pids }),
      record({ ...request, lock: living }, { ...times, ...pids }, { ...times, ...pids }),
      record(
        { ...request, lock: { ...living, path: join(machine.directory, 'gone') } },
        { ...times, ...pids },
        { ...times, ...pids },
      ),
      record({ ...request, lock: { ...living, byte: 1e300 } }, pids, pids),
      record({ ...request, lock: { path: '/dev/zero', device: 1, inode: 1, byte: -1 } }, pids, pids),
      ...[-1, 0, 1, 2 ** 32 + pid, 1e300, 2 ** 53, String(pid), null, [pid]].map((number) =>
        record(
          { ...request, lock: living },
          { pid: number, started: 1e300 },
          { ...times, keeper: number, front: number, pid: number },
        ),
      ),
      record(
        {
          ...request,
          name: 'a\u001b[31m',
          note: '\u001b]0;x\u0007',
          command: '\u001b[2J',
          output: '/dev/zero',
        },
        { pid, gpus: [{ index: 0, uuid: '\u001b[31m' }], reason: '\u001b[1m' },
        {},
      ),
      record(
        { ...request, after: [{ id: 1e9, isOk: true }, { id: 'x' }], submitted: 'never' },
        { gpus: 'all' },
        { ended: 'x' },
      ),
      record({ ...request, start: 7, directory: null }, {}, {}),
    ];
    for (const [i, contents] of odd.entries()) {
      const id = 100 + i;
      cpSync(jobs.directoryOf(ended), jobs.directoryOf(id), { recursive: true });
      const path = join(jobs.directoryOf(id), 'job');
      rmSync(path);
      if (typeof contents === 'function') contents(path);
      else
        writeFileSync(
          path,
          String(contents).includes('"id"')
            ? String(contents).replace(/"id":(\d+|ID)/, `"id":${id}`)
            : contents,
        );
    }
    const answers = async (words: string[]) => {
      const { code, stdout, stderr } = await jobs.run(words);
      expect({ words, code, stderr }).toEqual({
        words,
        code: expect.toSatisfy((code) => [0, 1, 64, 73, 75, 137, 143].includes(code)),
        stderr: expect.not.stringMatching(/internal|TypeError|\n +at /),
      });
      expect(stdout + stderr).not.toContain('\u001b');
      return stdout;
    };
    await answers(['jobs', '--all']);
    await answers(['__complete', 'bash', '--', 'logs', '']);
    const listed = JSON.parse(await answers(['jobs', '--all', '--json']));
    expect(listed.find(({ id }: ListedJob) => id === ended).state).toBe('completed');
    const store = jobs.store();
    const whether = async (act: Promise<unknown>) =>
      act.catch((error) => expect(error).toBeInstanceOf(GPUOwnerError));
    const cancel = (isForged: boolean) =>
      Promise.all(
        [...odd.keys()]
          .filter((i) => String(odd[i]).includes(String(living.byte)) !== isForged)
          .map((i) => whether(cancelNamed(store, 100 + i, 100))),
      );
    // The good job's byte is what some of them name: with a PID that has it not, nothing happens to that job either.
    for (const i of odd.keys()) await whether(waitForNamed(store, [100 + i], 0));
    await cancel(true);
    expect((await jobs.find(good)).state).toBe('running');
    await answers(['wait', '--timeout', '100ms', '111']);
    await answers(['logs', '111']);
    await answers(['resubmit', 'lost']);
    expect(said()).toBe('ready\n');
    expect((await jobs.find(good)).state).toBe('running');
    // A record that names the good job's byte as its own means that job.
    await cancel(false);
    expect((await jobs.find(good)).state).not.toBe('running');
    expect(said()).toBe('ready\n');
  });
});

describe('words', () => {
  test('escape sequences, options and bytes of the command reach it, and no terminal', async () => {
    const words = ['\u001b[31mred', '-n', '7', '--', '$(id)', 'a b'];
    const id = await jobs.submit(['--', 'sh', '-c', 'printf "%s\\n" "$@"', 'sh', ...words]);
    expect(await jobs.wait(id)).toBe(0);
    expect(await jobs.logs(id)).toBe(`${words.join('\n')}\n`);
    expect((await jobs.run(['jobs'])).stdout).not.toContain('\u001b');
    for (const GPU_OWNER_ROLE of ['placed 9:9', 'part 0:1', '9:9'])
      expectSentence(
        await jobs.run(['submit', '--', 'true'], { env: { GPU_OWNER_ROLE } }),
        64,
        /for gpu-owner itself/,
      );
    for (const GPU_OWNER_SUBMITTER of ['-1', '1', '3000000000', 'x'])
      expect(
        await machine.runCommand(['run', '--', 'echo', 'ran'], { env: { GPU_OWNER_SUBMITTER } }),
      ).toMatchObject({ code: 0, stdout: 'ran\n' });
  });

  test('arguments up to the limit run, and more are refused at once', async () => {
    const submit = async (count: number) => {
      const script = `const { spawnSync } = require('node:child_process');
        const { status, stdout, stderr } = spawnSync(process.execPath, [${JSON.stringify(command)}, 'submit', '--', 'sh', '-c', 'echo $#', ...Array(${count}).fill('x')]);
        console.log(JSON.stringify({ status, stdout: String(stdout), stderr: String(stderr) }));`;
      const { stdout } = await machine.run([process.execPath, '-e', script]);
      return JSON.parse(stdout);
    };
    const TOO_MANY = 203_000;
    const { status, stderr } = await submit(TOO_MANY);
    const [, size, limit] = /have (\d+) bytes together, and (\d+) are possible/.exec(stderr) ?? [];
    expect({ status, isTooMuch: Number(size) > Number(limit) }).toEqual({ status: 64, isTooMuch: true });
    // Each takes two bytes and a pointer.
    const most = TOO_MANY - Math.ceil((Number(size) - Number(limit)) / 10);
    expect(await submit(most)).toEqual({ status: 0, stdout: '1\n', stderr: '' });
    expect(await jobs.wait(1)).toBe(0);
    expect(await jobs.logs(1)).toBe(`${most - 1}\n`);
  });

  test('a directory whose name is not UTF-8 is found again', async () => {
    const shell = (words: string) => machine.run(['sh', '-c', `cd ${machine.directory}; ${words}`]);
    const made = await shell(
      `d=$(printf 'd\\377'); mkdir "$d"; cd "$d"; ${process.execPath} ${command} submit -- sh -c 'pwd | od -An -c | tail -n 1'`,
    );
    expect(made).toMatchObject({ code: 0, stderr: '' });
    expect(await jobs.wait(1)).toBe(0);
    expect((await jobs.run(['resubmit', '1'])).stdout).toBe('2\n');
    expect(await jobs.wait(2)).toBe(0);
    expect(await jobs.logs(2)).toBe(await jobs.logs(1));
    expect(await jobs.logs(2)).toContain('377');
  });

  test('a directory that is gone at the start is no hindrance; one that is gone at the submission is said', async () => {
    const directory = join(machine.directory, 'short-lived');
    mkdirSync(directory);
    await jobs.submit(['-n2', '--', ...machine.untilFile('go')], { cwd: directory });
    await jobs.submit(['--', 'sh', '-c', 'exit 3'], { cwd: directory });
    await jobs.submit(['--after', '1', '--', 'sh', '-c', 'exit 4'], { cwd: directory });
    await until(async () => (await jobs.find(2)).position === 1);
    rmSync(directory, { recursive: true });
    machine.touch('go');
    expect(await jobs.wait(2)).toBe(3);
    expect(await jobs.wait(3)).toBe(4);
    const { stderr } = await machine.run([
      'sh',
      '-c',
      `mkdir ${directory}; cd ${directory}; rmdir ${directory}; ${process.execPath} ${command} submit true`,
    ]);
    expect(stderr).toMatch(/current directory is not known/);
    expect(stderr).not.toMatch(/internal|\n +at /);
  });
});

describe('--output', () => {
  test.skipIf(noNobody)('files that may not be written to are refused, and others are not', async () => {
    const own = new Jobs(machine, { uid: NOBODY });
    const path = join(machine.directory, 'file');
    writeFileSync(path, '', { mode: 0o600 });
    expectSentence(await own.run(['submit', '--output', path, 'true']), 64, /may not write to/);
    const closed = join(machine.directory, 'closed');
    mkdirSync(closed, { mode: 0o700 });
    for (const there of [`${path}2`, join(closed, 'log')])
      expectSentence(await own.run(['submit', '--output', there, 'true']), 64, /may not write in/);
    expect(await own.list()).toEqual([]);
    chmodSync(path, 0o666);
    await own.submit(['--output', path, '--', 'echo', 'said']);
    await own.submit(['--output', '/dev/null', '--', 'echo', 'said']);
    expect(await own.wait(1, 2)).toBe(0);
    expect(readFileSync(path, 'utf8')).toBe('said\n');
  });

  test.skipIf(noNobody)(
    'a file that may no longer be written to is said when a job is submitted once more',
    async () => {
      const own = new Jobs(machine, { uid: NOBODY });
      const path = join(machine.directory, 'file');
      writeFileSync(path, '');
      chmodSync(path, 0o666);
      await own.submit(['--output', path, '--', 'echo', 'said']);
      await own.wait(1);
      chmodSync(path, 0o644);
      expectSentence(await own.run(['resubmit', '1']), 64, /file' can't be written: permission denied/);
      expect(await states(own)).toEqual(['1 completed']);
      expect(own.processes()).toEqual([]);
    },
  );
});
