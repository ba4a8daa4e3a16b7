// Jobs in the background, from their submission to their end.
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { writeBlock } from '../../lib/jobs/job-record.ts';
import { checkJobOptions } from '../../lib/jobs/job-request.ts';
import { fixture } from '../support/keeper.ts';
import { command, finished, launcher, type Machine, output, python } from '../support/machine.ts';
import { sendSignal, stat } from '../support/processes.ts';
import { until } from '../support/time.ts';
import { type Jobs, jobTest } from './background.ts';

let machine: Machine;
let jobs: Jobs;
jobTest((opened) => {
  ({ machine, jobs } = opened);
});

test('a job runs in the background: its number, state, exit code and output', async () => {
  const id = await jobs.submit([
    '--name',
    'first',
    '--note',
    'for the paper',
    '-n2',
    '--',
    'sh',
    '-c',
    `echo out; echo err >&2; ${machine.untilFile('go')[2]}; exit 3`,
  ]);
  expect(id).toBe(1);
  expect(await jobs.reach(id, 'running')).toMatchObject({
    id: 1,
    name: 'first',
    exitCode: null,
    reason: null,
    count: 2,
    gpus: [{ index: 0 }, { index: 1 }],
    note: 'for the paper',
    ended: null,
  });
  expect((await machine.status())[0].lease).toMatchObject({ job: 1, name: 'first', note: 'for the paper' });
  const shown = await jobs.run(['jobs', 'first']);
  expect(shown.stdout).toMatch(
    /^job +1 first\nstate +running\ncommand +sh -c .*\ndirectory +\/.*\nGPUs +0,1\nnote +for the paper\n/,
  );
  expect(shown.stdout).toMatch(/\noutput +\/.*/);
  const [only] = JSON.parse((await jobs.run(['jobs', '1', '--json'])).stdout);
  expect(only).toMatchObject({ id: 1, state: 'running', directory: process.cwd(), limit: null });
  expect((await jobs.run(['jobs', '7'])).stderr).toMatch(/you have no job 7/);
  const waiting = machine.startCommand(['run', '--name', 'next', '--note', 'short', '--', 'true']);
  await until(async () => (await machine.runCommand(['queue'])).stdout.includes(', next'));
  expect((await machine.runCommand(['queue'])).stdout).toMatch(
    /^ {2}1\. a GPU for .*, next\n {5}\S+'s first has GPUs 0,1\n {5}note: short\n {5}GPU 0,1: leased by \S+ since [-\d: ]+ \(first, pid .*\n$/,
  );
  machine.touch('go');
  await finished(waiting);
  expect(await jobs.wait('first')).toBe(3);
  expect(await jobs.find(id)).toMatchObject({
    state: 'failed',
    exitCode: 3,
    pid: null,
    gpus: [{ index: 0 }, { index: 1 }],
  });
  expect(await jobs.logs('first')).toBe('out\nerr\n');
  await until(() => jobs.processes().length === 0);
  expect(await machine.states()).toEqual(['free', 'free']);
  expect(await jobs.submit(['true'])).toBe(2);
  expect(await jobs.wait(2)).toBe(0);
  expect((await jobs.find(2)).state).toBe('completed');
});

test('a job has arguments, environment, directory, umask, limits and descriptors as in the foreground', async () => {
  const script = fixture('environment.py');
  const shell = (words: string) =>
    `ulimit -c 0; ulimit -Sn 512; umask 027; ${words} ${python} ${script} "$(printf 'a\\377b')" 'two words' '' -n 9`;
  const odd = { 'ODD.NAME': 'x', VALUE: 'line\nbreak' };
  const start = (words: string) =>
    machine.run(['bash', '-c', shell(words)], { cwd: machine.directory, env: odd });
  const foreground = await start(`${launcher} run --`);
  const submitted = await start(`${launcher} submit --`);
  expect(submitted).toMatchObject({ code: 0, stdout: '1\n', stderr: '' });
  expect(await jobs.wait(1)).toBe(0);
  const lines = (text: string) => text.split('\n');
  const background = lines(await jobs.logs(1));
  expect(background.slice(0, 2)).toEqual(lines(foreground.stdout).slice(0, 2));
  expect(background[1]).toContain("b'a\\xffb', b'two words', b'', b'-n', b'9'");
  expect(background[1]).toContain(' 0o27 (512,');
});

test('output of Python is in the log at once, unless the user wants it otherwise', async () => {
  const script = 'import os, time\nprint("begun")\nwhile not os.path.exists("go"): time.sleep(0.02)';
  const env = { PYTHONUNBUFFERED: '' };
  const cwd = machine.directory;
  const [first, second] = [
    await jobs.submit(['--', python, '-c', script], { cwd }),
    await jobs.submit(['--', 'printenv', 'PYTHONUNBUFFERED'], { cwd, env }),
  ];
  await until(async () => (await jobs.logs(first)) === 'begun\n');
  machine.touch('go');
  expect(await jobs.wait(first, second)).toBe(0);
  expect(await jobs.logs(second)).toBe('\n');
});

test('a waiting job says which GPUs CUDA_VISIBLE_DEVICES leaves out', async () => {
  const first = await jobs.submit(['-n', '2', '--', ...machine.untilFile('go')]);
  await jobs.reach(first, 'running');
  const second = await jobs.submit(['--', 'true'], { env: { CUDA_VISIBLE_DEVICES: '1' } });
  const reason = async () => String((await jobs.find(second)).reason);
  await until(async () => (await reason()).includes('leaves out'));
  expect(await reason()).toMatch(
    /^\S+ has GPU \d; the CUDA_VISIBLE_DEVICES that was inherited leaves out another GPU$/,
  );
  machine.touch('go');
  expect(await jobs.wait(first, second)).toBe(0);
});

describe('submit refuses at once', () => {
  test('what can never run, or has no place', async () => {
    const refused: [string[], RegExp][] = [
      [['-n1'], /a command is missing/],
      [['no-such-program'], /cannot run 'no-such-program': not found in PATH/],
      [['./plain'], /plain': not executable \(permission denied\); make it so \(chmod \+x\)/],
      [['-n3', 'true'], /3/],
      [['--name', 'a\u001b[31m', 'true'], /is not a name/],
      [['--name', 'me', '--after', 'me', 'true'], /you have no job me/],
      [['--output', 'none/out', 'true'], /there is no directory/],
      [['--for', '0', 'true'], /leaves no time/],
    ];
    writeFileSync(join(machine.directory, 'plain'), '', { mode: 0o644 });
    for (const [words, message] of refused) {
      const { code, stdout, stderr } = await jobs.run(['submit', ...words], { cwd: machine.directory });
      expect({ code, stdout, stderr }, words.join(' ')).toEqual({
        code: 64,
        stdout: '',
        stderr: expect.stringMatching(message),
      });
    }
    expect(jobs.processes()).toEqual([]);
    expect(await jobs.list()).toEqual([]);
  });

  test.each([
    ['name', '12', /would be taken for a job's number/],
    ['name', '17_3', /would be taken for a job's number/],
    ['name', 'a,b', /would be taken for several jobs/],
    ['name', 'a:b', /would be taken for another machine's job/],
    ['name', 'a b', /is not a name/],
    ['name', 'a\nb', /is not a name/],
    ['name', '../a', /is not a name/],
    ['name', '--', /is not a name/],
    ['name', 'a\u202eb', /is not a name/],
    ['name', 'a'.repeat(65), /is not a name/],
    ['name', 'lost', /'lost' means all lost jobs/],
    ['note', 'a\nb', /one line/],
    ['note', '\u001b]0;title\u0007', /one line/],
    ['note', 'a'.repeat(201), /one line/],
  ])('%s %j', (option, value, message) => {
    expect(() => checkJobOptions({ [option]: value })).toThrow(message);
  });

  test('to run inside a job', async () => {
    const { stderr } = await jobs.run(['run', '--', process.execPath, command, 'submit', 'true']);
    expect(stderr).toMatch(/submit from another shell/);
  });

  test('to run where jobs can not be kept', async () => {
    writeFileSync(join(machine.directory, 'file'), '');
    const { code, stderr } = await jobs.run(['submit', 'true'], {
      env: { XDG_STATE_HOME: join(machine.directory, 'file') },
    });
    expect({ code, stderr }).toMatchObject({
      code: 73,
      stderr: expect.stringMatching(/can't be kept in .*XDG_STATE_HOME/s),
    });
    const nowhere = await jobs.run(['submit', 'true'], {
      env: { XDG_STATE_HOME: undefined, HOME: 'here' },
    });
    expect(nowhere).toMatchObject({
      code: 73,
      stderr: expect.stringMatching(/HOME is no absolute path/),
    });
  });
});

test('--retry starts a job anew that fails, so often, under its number', async () => {
  const command = `echo "try $GPU_OWNER_RESTART$GPU_OWNER_ROLE"; exit $((2 - GPU_OWNER_RESTART))`;
  const id = await jobs.submit(['--retry', '3', '--', 'sh', '-c', command]);
  expect(await jobs.wait(id)).toBe(0);
  expect(await jobs.logs(id)).toMatch(
    /^try 0\ngpu-owner: sh has failed, .* \(retry 1 of 3\)\ntry 1\ngpu-owner: .* \(retry 2 of 3\)\ntry 2\n$/,
  );
  expect(await jobs.find(id)).toMatchObject({ state: 'completed', retried: 2, preempted: 0 });
  const failing = await jobs.submit(['--retry', '1', '--', 'sh', '-c', 'kill -9 $$']);
  expect(await jobs.wait(failing)).toBe(137);
  expect(await jobs.find(failing)).toMatchObject({ state: 'failed', retried: 1 });
  expect((await jobs.run(['jobs'])).stdout).toMatch(/failed once before, and was restarted; exit code 137/);
  const late = await jobs.submit(['--retry', '3', '--for', '300ms', '--', 'sleep', '1000']);
  expect(await jobs.wait(late)).toBe(124);
  expect(await jobs.find(late)).toMatchObject({ retried: 0 });
  for (const wrong of ['often', '3:256']) {
    const { code, stderr } = await jobs.run(['submit', '--retry', wrong, 'true']);
    expect([code, stderr]).toEqual([
      64,
      expect.stringContaining(`--retry: '${wrong}' is not a number of times`),
    ]);
  }
});

test('--retry 9:75 starts a job anew that asks for it by this exit code, and no other', async () => {
  const id = await jobs.submit(['--retry', '9:75', '--', 'sh', '-c', 'exit $((75 + GPU_OWNER_RESTART))']);
  expect(await jobs.wait(id)).toBe(76);
  expect(await jobs.logs(id)).toMatch(/^gpu-owner: sh has ended with exit code 75, .* \(retry 1 of 9\)\n$/);
  expect(await jobs.find(id)).toMatchObject({ state: 'failed', retried: 1 });
});

describe('order', () => {
  test('--after waits for the end, --after-ok for exit code 0', async () => {
    const first = await jobs.submit(['--name', 'first', '--', ...machine.untilFile('go'), ';', 'exit 1']);
    const failing = await jobs.submit(['--', 'sh', '-c', `${machine.untilFile('go')[2]}; exit 4`]);
    const after = await jobs.submit(['--after', 'first', '--after', String(failing), 'true']);
    const afterOk = await jobs.submit(['--after-ok', String(failing), 'true']);
    const afterThat = await jobs.submit(['--after-ok', String(afterOk), 'true']);
    await jobs.reach(first, 'running');
    await jobs.reach(failing, 'running');
    expect(await jobs.find(after)).toMatchObject({
      state: 'waiting',
      after: [first, failing],
      reason: `after job ${first}, job ${failing}`,
    });
    // The job is in no other's way.
    expect(JSON.parse((await jobs.run(['queue', '--json'])).stdout)).toEqual([]);
    machine.touch('go');
    expect(await jobs.wait(after)).toBe(0);
    expect(await jobs.wait(afterOk)).toBe(143);
    expect(await jobs.find(afterOk)).toMatchObject({
      state: 'cancelled',
      reason: `it was to follow job ${failing}, which failed with exit code 4`,
    });
    expect(await jobs.wait(afterThat)).toBe(143);
    expect((await jobs.find(afterThat)).reason).toBe(`it was to follow job ${afterOk}, which was cancelled`);
    const { code, stderr } = await jobs.run(['submit', '--after-ok', String(failing), 'true']);
    expect(code).toBe(64);
    expect(stderr).toMatch(/failed with exit code 4, so the new job would never start/);
  });

  test('--after a time starts the job then, and not before; a native process waits', async () => {
    const begin = Date.now();
    const first = await jobs.submit(['sleep', '1']);
    const id = await jobs.submit(['--after', `${first},+3s`, '--', 'date', '+%s%3N']);
    const late = await jobs.submit(['--after', '23:59', 'true']);
    const { state, reason, pid } = await jobs.find(late);
    expect([state, reason]).toEqual(['waiting', expect.stringMatching(/^after \w{3} [\d-]+ 23:59 /)]);
    await until(() => readFileSync(`/proc/${pid}/comm`, 'utf8') === 'gpu-owner-wait\n');
    expect(JSON.parse((await jobs.run(['queue', '--json'])).stdout)).toEqual([]);
    expect(await jobs.wait(id)).toBe(0);
    expect(Number((await jobs.run(['logs', String(id)])).stdout) - begin).toBeGreaterThanOrEqual(3_000);
    expect(await jobs.run(['cancel', String(late)])).toMatchObject({ code: 0 });
    for (const [time, why] of [
      ['25:00', /'25:00' is not a time/],
      ['2020-01-01', /2020-01-01 00:00 .* is over; use a time to come/],
    ] as const)
      expect(await jobs.run(['submit', '--after', time, 'true'])).toMatchObject({
        code: 64,
        stderr: expect.stringMatching(why),
      });
  });
});

describe('cancel', () => {
  test('a job that waits ends at once, and those that were to follow it', async () => {
    const running = await jobs.submit(['-n2', '--', ...machine.untilFile('go')]);
    await jobs.reach(running, 'running');
    const waiting = await jobs.submit(['--', 'touch', join(machine.directory, 'ran')]);
    const following = await jobs.submit(['--after-ok', String(waiting), 'true']);
    await until(async () => (await jobs.find(waiting)).position === 1);
    expect(await jobs.run(['cancel', String(waiting)])).toMatchObject({ code: 0, stderr: '' });
    expect(await jobs.find(waiting)).toMatchObject({ state: 'cancelled', exitCode: null });
    expect(await jobs.wait(waiting)).toBe(143);
    expect(await jobs.wait(following)).toBe(143);
    machine.touch('go');
    expect(await jobs.wait(running)).toBe(0);
    expect(existsSync(join(machine.directory, 'ran'))).toBe(false);
    expect(JSON.parse((await jobs.run(['queue', '--json'])).stdout)).toEqual([]);
  });

  test('everything of a job ends: what ignores SIGTERM, forks, has a session of its own or is stopped', async () => {
    const id = await jobs.submit(['--', python, fixture('stubborn.py'), machine.directory]);
    await until(async () => (await jobs.logs(id)) === 'ready\n');
    expect(await jobs.run(['cancel', '--grace', '300ms', String(id)])).toMatchObject({ code: 0, stderr: '' });
    expect(await jobs.find(id)).toMatchObject({ state: 'cancelled', exitCode: 137 });
    await until(() => jobs.processes().length === 0);
    expect(await machine.states()).toEqual(['free', 'free']);
  });

  test('a job that ended by itself stays what it was', async () => {
    const id = await jobs.submit(['true']);
    await jobs.wait(id);
    expect(await jobs.run(['cancel', String(id)])).toMatchObject({
      code: 0,
      stderr: `gpu-owner: job ${id} had ended already\n`,
    });
    expect((await jobs.find(id)).state).toBe('completed');
  });
});

test('a job whose processes were killed is lost, and resubmitted as it was', async () => {
  const directory = join(machine.directory, 'project');
  mkdirSync(directory);
  const id = await jobs.submit(
    [
      '--name',
      'again',
      '-n2',
      '--',
      'sh',
      '-c',
      `pwd; umask; echo $KEY; [ -e ${join(machine.directory, 'go')} ] || sleep 1000`,
      'x',
    ],
    {
      cwd: directory,
      umask: '027',
      env: { KEY: 'secret' },
    },
  );
  await jobs.reach(id, 'running');
  await jobs.end();
  expect(await jobs.reach(id, 'lost')).toMatchObject({ exitCode: null, ended: null });
  expect(await jobs.wait(id)).toBe(137);
  machine.touch('go');
  const { stdout, stderr, code } = await jobs.run(['resubmit', 'lost']);
  expect({ stdout, stderr, code }).toEqual({ stdout: '2\n', stderr: '', code: 0 });
  expect(await jobs.wait('again')).toBe(0);
  expect(await jobs.logs(2)).toBe(`${directory}\n0027\nsecret\n`);
  expect((await jobs.run(['resubmit', 'lost'])).stdout).toBe('');
  rmSync(directory, { recursive: true });
  expect(await jobs.run(['resubmit', '2'])).toMatchObject({
    code: 64,
    stderr: expect.stringMatching(/no longer there/),
  });
});

test('jobs are served in the order of their submission, also if one takes its time to start', async () => {
  const order = join(machine.directory, 'order');
  const say = (text: string) => ['sh', '-c', `echo ${text} >> ${order}`];
  // Suspended before it looks at the GPUs.
  const env = { GPU_OWNER_STOP_AT: 'start' };
  const resume = async (id: number) => {
    const { pid } = await jobs.find(id);
    await until(() => stat(pid)?.state === 'T');
    sendSignal(pid, 'SIGCONT');
  };
  await jobs.submit(['-n2', '--', ...say('slow')], { env });
  await jobs.submit(['--', ...say('quick')]);
  await resume(1);
  expect(await jobs.wait(1, 2)).toBe(0);
  expect(readFileSync(order, 'utf8')).toBe('slow\nquick\n');
  rmSync(order);
  const { code, stderr } = await jobs.run(['resubmit', '1', '2']);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  await resume(3);
  expect(await jobs.wait(3, 4)).toBe(0);
  expect(readFileSync(order, 'utf8')).toBe('slow\nquick\n');
});

test('Node.js is started once for submit and the job together', async () => {
  const starts = join(machine.directory, 'starts');
  const count = join(machine.directory, 'count.cjs');
  writeFileSync(count, `require('node:fs').appendFileSync(${JSON.stringify(starts)}, process.pid + '\\n');`);
  for (const option of ['--wait', '--no-wait']) {
    // By the launcher.
    const env = { NODE_OPTIONS: `--require=${count}` };
    const { code, stdout } = await machine.run([launcher, 'submit', option, '--', 'true'], { env });
    expect(code).toBe(0);
    expect(await jobs.wait(Number(stdout))).toBe(0);
    expect(readFileSync(starts, 'utf8').trim().split('\n')).toHaveLength(1);
    rmSync(starts);
  }
});

test('submit --no-wait prints a number once the job has its GPUs; otherwise it ends with 75 and leaves nothing', async () => {
  const first = await jobs.submit(['-n2', '--no-wait', '--', ...machine.untilFile('go')]);
  expect(await jobs.reach(first, 'running')).toMatchObject({ gpus: [{ index: 0 }, { index: 1 }] });
  const refused = {
    code: 75,
    stdout: '',
    stderr: expect.stringMatching(
      /^gpu-owner: 1 GPU asked for, none is free:\n {2}GPU 0: leased by .*\n {2}GPU 1: /,
    ),
  };
  expect(await jobs.run(['submit', '--no-wait', '--', 'true'])).toMatchObject(refused);
  expect((await jobs.list()).map(({ id }) => id)).toEqual([first]);
  // A job that follows others is decided later.
  const later = await jobs.submit(['--no-wait', '--after', String(first), '--', 'true']);
  machine.touch('go');
  expect(await jobs.wait(first, later)).toBe(0);
  const holder = machine.startCommand(['hold', '-n2']);
  await output(holder, /visibleDevices/);
  expect(await jobs.run(['resubmit', String(first)])).toMatchObject({
    ...refused,
    stderr: expect.stringMatching(/^gpu-owner: 2 GPUs asked for, none is free/),
  });
  holder.stdin?.end();
  await finished(holder);
  const { code, stdout } = await jobs.run(['resubmit', String(first)]);
  expect(code).toBe(0);
  expect(await jobs.wait(Number(stdout))).toBe(0);
});

test('a job of submit --no-wait whose number is told to nobody doesn’t start, and gives its GPUs back', async () => {
  const ran = join(machine.directory, 'ran');
  const words = ['submit', '--no-wait', '-n2', '--', 'touch', ran];
  const toFull = ['sh', '-c', 'exec "$@" > /dev/full', 'sh', process.execPath, command];
  const full = await machine.run([...toFull, ...words]);
  expect(full).toMatchObject({ code: 74, stderr: expect.stringMatching(/job 1 was not started/) });
  await until(() => jobs.processes().length === 0);
  expect(await machine.states()).toEqual(['free', 'free']);

  // Submit ends between the grant and the answer.
  const submit = machine.startCommand(words, { env: { GPU_OWNER_STOP_AT: 'claimed' } });
  const ended = finished(submit, 'exit');
  const stopped = () => jobs.processes().filter((pid) => pid !== submit.pid && stat(pid)?.state === 'T');
  await until(() => stopped().length > 0);
  sendSignal(submit.pid, 'SIGKILL');
  expect(await ended).toMatchObject({ signal: 'SIGKILL', stdout: '' });
  for (const pid of stopped()) sendSignal(pid, 'SIGCONT');
  await until(() => jobs.processes().length === 0);
  expect(await machine.states()).toEqual(['free', 'free']);
  expect(await jobs.list()).toEqual([]);
  expect(existsSync(ran)).toBe(false);
});

test('a name means the living job, else the newest that ended, and never several', async () => {
  const old = await jobs.submit(['--name', 'x', 'false']);
  await jobs.wait(old);
  const newer = await jobs.submit(['--name', 'x', '--', ...machine.untilFile('go')]);
  expect((await jobs.run(['logs', 'x'])).code).toBe(0);
  const third = await jobs.submit(['--name', 'x', '--', ...machine.untilFile('go')]);
  expect(await jobs.run(['cancel', 'x'])).toMatchObject({
    code: 64,
    stderr: expect.stringContaining(`give one of their numbers, ${newer} or ${third}`),
  });
  machine.touch('go');
  expect(await jobs.wait(newer, third)).toBe(0);
  expect(await jobs.wait('x')).toBe(0);
  expect(await jobs.run(['wait', ...[newer, old, third].map(String)])).toMatchObject({ code: 1, stderr: '' });
  expect(await jobs.run(['wait', '99'])).toMatchObject({
    code: 64,
    stderr: expect.stringMatching(/you have no job 99/),
  });
});

test('logs prints the last lines, and follows new ones', async () => {
  const id = await jobs.submit(
    [
      '--output',
      'log-%j-%n',
      '--name',
      'n',
      '--',
      'sh',
      '-c',
      `printf 'a\\nb\\nc'; ${machine.untilFile('go')[2]}; echo; echo d`,
    ],
    {
      cwd: machine.directory,
    },
  );
  await until(async () => (await jobs.logs(id)) === 'a\nb\nc');
  expect(await jobs.logs(id, '-n', '2')).toBe('b\nc');
  expect(await jobs.logs(id, '-n0')).toBe('');
  const following = machine.startCommand(['logs', '-f', '-n', '1', 'n']);
  const followed = finished(following);
  await output(following, /c/);
  machine.touch('go');
  expect(await followed).toMatchObject({ code: 0, stdout: 'c\nd\n' });
  expect(readFileSync(join(machine.directory, `log-${id}-n`), 'utf8')).toBe('a\nb\nc\nd\n');
});

test('an output file of the user has ordinary permissions, also in a directory that is called as ours', async () => {
  const directory = join(machine.directory, 'src/gpu-owner/jobs');
  mkdirSync(directory, { recursive: true });
  const id = await jobs.submit(['--output', 'src/gpu-owner/jobs/log', 'true'], { cwd: machine.directory });
  expect(await jobs.wait(id)).toBe(0);
  expect(statSync(join(directory, 'log')).mode & 0o777).toBe(0o666 & ~process.umask());
});

test('a run in the foreground is listed, too', async () => {
  const child = machine.startCommand([
    'run',
    '--name',
    'mine',
    '--for',
    '1h',
    '--',
    ...machine.untilFile('go'),
  ]);
  await until(async () => (await jobs.list()).length === 1);
  // Between the wait queue and the lease, a job is in neither. The keeper notes the limit.
  await until(async () => (await jobs.list())[0]?.until != null);
  expect((await jobs.list())[0]).toMatchObject({
    id: null,
    name: 'mine',
    state: 'running',
    gpus: [{ index: 0 }],
    submitted: null,
  });
  const { stdout } = await jobs.run(['jobs']);
  expect(stdout).toMatch(/^ +run mine +running +0 .*sh -c .*\n +(1 h|59 min).* left, until/m);
  for (const line of stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  machine.touch('go');
  child.kill();
});

test.each(['000'])('what is kept is for its user alone, where the umask is %s', async (umask) => {
  const id = await jobs.submit(['--', 'sh', '-c', 'umask'], { umask });
  expect(await jobs.wait(id)).toBe(0);
  expect(await jobs.logs(id)).toBe(`0${umask}\n`);
  const modeOf = (path: string) => statSync(path).mode & 0o777;
  const directory = jobs.directoryOf(id);
  const above = ['..', '../..', '../../..'].map((path) => join(directory, path));
  expect([directory, ...above].map(modeOf)).toEqual(Array(4).fill(0o700));
  const files = ['job', 'arguments', 'environment', 'output'].map((name) => join(directory, name));
  expect(files.map(modeOf)).toEqual(Array(4).fill(0o600));
});

describe('a job whose number can’t be told doesn’t start', () => {
  const told = (words: string[], stdout: string) =>
    machine.run(['sh', '-c', `"$@" ${stdout}`, 'sh', process.execPath, command, ...words], {
      cwd: machine.directory,
    });
  const refused = {
    code: 74,
    stderr: expect.stringMatching(/can't be written: .*\n.*job \d+ was not started/),
  };

  test('of submit, on a full disk and where its reader is gone', async () => {
    const words = ['submit', '--', 'touch', 'ran'];
    expect(await told(words, '>/dev/full')).toMatchObject(refused);
    const gone = `trap '' PIPE; mkfifo pipe; exec 3<>pipe 4>pipe 3<&-; "$@" >&4`;
    const starting = { cwd: machine.directory };
    expect(
      await machine.run(['sh', '-c', gone, 'sh', process.execPath, command, ...words], starting),
    ).toMatchObject(refused);
    expect(await jobs.list()).toEqual([]);
  });
});

test.each([
  ['after its cancellation was noted is cancelled', 1_000, 'cancelled'],
  ['before that has failed', -60_000, 'failed'],
])('a command that SIGTERM ends without its keeper %s', async (_, earlierMs, state) => {
  const id = await jobs.submit(['--', 'sh', '-c', 'echo $$ > pid; exec sleep 60'], {
    cwd: machine.directory,
  });
  const pid = join(machine.directory, 'pid');
  await until(() => existsSync(pid) && readFileSync(pid, 'utf8').endsWith('\n'));
  await jobs.reach(id, 'running');
  const file = openSync(join(jobs.directoryOf(id), 'job'), 'r+');
  expect(writeBlock(file, 'cancellation', { at: Date.now() - earlierMs, reason: null })).toBe(true);
  closeSync(file);
  sendSignal(Number(readFileSync(pid, 'utf8')), 'SIGTERM');
  expect(await jobs.reach(id, 'cancelled', 'failed')).toMatchObject({ state, exitCode: 143 });
});
