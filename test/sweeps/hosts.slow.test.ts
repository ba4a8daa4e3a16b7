// `exp run --on`: workers on other machines over a real ssh, each with simulated GPUs of its own; the manager is here.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { finished, launcher, type Machine, output, python, until } from '../support/machine.ts';
import { isAlive, nameOf, processesWith, signalLiving, treeOf, wordsOf } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const reason = whyNoSSHD();

describe.skipIf(reason !== null)(`exp run --on${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  let a: Machine;
  let b: Machine;
  let project: string;
  let count = 0;

  beforeAll(async () => {
    hosts = await Hosts.start();
    a = hosts.add('a', { files: { '.bashrc': 'echo noise; echo noise >&2' } });
    b = hosts.add('b', { gpus: 3 });
    hosts.addName('down*', ['Port 1']);
  });
  afterAll(() => hosts?.close());
  beforeEach(() => {
    project = join(hosts.viewer.directory, `project${++count}`);
    mkdirSync(project);
  });

  const env = (more = {}) => ({ ...hosts.env, GPU_OWNER_BUILD: undefined, ...more });
  const started: ChildProcess[] = [];
  // One test that fails leaves no workers for the next ones.
  afterEach(() => {
    for (const child of started.splice(0)) child.kill('SIGKILL');
  });
  const start = (args: string[], more = {}) => {
    const child = hosts.viewer.start([launcher, 'exp', ...args], { env: env(more), cwd: project });
    started.push(child);
    return child;
  };
  const run = (args: string[], more = {}) => finished(start(args, more));
  /** A task that tells a witness of its start, and has a row. */
  const task = (text = ':') => [
    '--shell',
    '--',
    `echo {n} $HOME $PWD $CUDA_VISIBLE_DEVICES >> ${project}/starts; ${text}; echo '{{"y": '{n}'}}' > "$GPU_OWNER_RESULT"`,
  ];
  const starts = () => linesOf('starts');
  const rows = () => linesOf('results_grid/final_results.csv').slice(1);
  const linesOf = (name: string) => {
    const path = join(project, name);
    return existsSync(path) ? readFileSync(path, 'utf8').split('\n').slice(0, -1) : [];
  };

  test('each task runs once, on GPUs of all hosts, and has one row', async () => {
    const ended = await run(
      [
        'run',
        '--on',
        'a,b',
        '--gpus',
        'all',
        ...['--env', 'WITNESS_*', '--env', 'SAID=so'],
        '--grid',
        'n=1..20',
        ...task(`sleep 0.2; echo "$WITNESS_KEY, $SAID" >> ${project}/said`),
      ],
      { WITNESS_KEY: "a 'key'" },
    );
    expect(linesOf('said')).toEqual(Array(20).fill("a 'key', so"));
    expect(ended, ended.stdout + ended.stderr).toMatchObject({ code: 0 });
    expect(rows().length).toBe(20);
    expect(new Set(rows()).size).toBe(20);
    expect(starts().length).toBe(20);
    const gpus = (host: Machine) =>
      new Set(
        starts().flatMap((line) => (line.includes(`${host.directory}/home`) ? [line.split(' ')[3]] : [])),
      );
    expect([gpus(a).size, gpus(b).size]).toEqual([2, 3]);
  });

  test('hosts that can’t be used are named, and the others work', async () => {
    hosts.add('bare', { program: null });
    const elsewhere = join(b.directory, 'elsewhere');
    mkdirSync(elsewhere);
    const others = Array.from({ length: 10 }, (_, i) => `down${i}`);
    const list = `down,${others},bare,a:/nonexistent,b:${elsewhere}`;
    const { code, stdout, stderr } = await run([
      'run',
      '--on',
      list,
      '--gpus',
      '1',
      '--grid',
      'n=1,2',
      ...task(),
    ]);
    expect(code, stdout).toBe(0);
    expect(stdout).toMatch(/down: connection refused.*\. Trying again in/);
    expect(stderr).toBe(''); // Node.js warns of more than ten listeners
    expect(stdout).toMatch(/bare: gpu-owner is neither in PATH/);
    expect(stdout).toMatch(/a: there is no directory '\/nonexistent'.*--on a:\/DIR/);
    expect(starts().map((line) => line.split(' ')[2])).toEqual([elsewhere, elsewhere]);
    expect(rows().length).toBe(2);
  });

  test('a host that talks nonsense is named, and stops nothing', async () => {
    const first = `[ "$2" = worker ] || exec ${process.execPath} ${launcher} "$@"; read -r _`;
    const says = {
      rude: `printf '\\033[2J{"\\n'; sleep 600`,
      endless: 'yes | tr -d "\\n"',
      silent: 'exit 0',
      greedy: `printf '{"id":1,"call":"complete","args":["1-0",{}]}\\n{"call":{}}\\n'; sleep 600`,
    };
    for (const [name, script] of Object.entries(says)) hosts.add(name, { program: `${first}; ${script}` });
    const list = [...Object.keys(says), 'a'].join();
    const waits = task(`while [ ! -e ${project}/go ]; do sleep 0.05; done`);
    const manager = start(['run', '--on', list, '--gpus', '1', '--grid', 'n=1,2', ...waits]);
    const ended = finished(manager);
    let said = '';
    manager.stdout?.on('data', (text) => {
      said += text;
    });
    await until(() =>
      [
        /endless: it sends more than 16 MiB/,
        /silent: its workers ended/,
        /rude: its answer makes no sense/,
        /greedy: its answer makes no sense/,
      ].every((message) => message.test(said)),
    );
    await until(() => starts().length === 1);
    writeFileSync(join(project, 'go'), '');
    const { code, stdout } = await ended;
    expect(code, stdout).toBe(0);
    expect(stdout).not.toContain('\u001b');
    expect(rows().length).toBe(2);
  });

  test('it runs as a job in the background, on a machine without a driver', async () => {
    const words = ['run', '--detach', '--on', 'a,b', '--gpus', 'all', '--grid', 'n=1..4', ...task()];
    const submitted = await run(words);
    expect(submitted, submitted.stderr).toMatchObject({ code: 0, stdout: '1\n' });
    await until(() => rows().length === 4);
    const waited = await finished(hosts.viewer.start([launcher, 'wait', '1'], { env: env(), cwd: project }));
    expect(waited).toMatchObject({ code: 0 });
  });

  test('where no host can be used, it ends', async () => {
    const grid = ['--grid', 'n=1', ...task()];
    for (const [words, code, message] of [
      [['--on', 'down', '--gpus', 'all'], 69, /down: connection refused/],
      [['--on', 'a', '--gpus', '9'], 64, /a: .*9 GPUs/],
      [['--on', 'any', '--gpus', '1'], 64, /no host is configured/],
    ] as const) {
      const ended = await run(['run', ...words, ...grid]);
      expect(ended, ended.stdout + ended.stderr).toMatchObject({ code });
      expect(ended.stdout + ended.stderr).toMatch(message);
    }
  });

  test('Ctrl-C lets tasks finish on all hosts; a second one stops them', async () => {
    const words = ['run', '--on', 'a,b', '--gpus', '1', '--grid', 'n=1..4'];
    const waits = task(`while [ ! -e ${project}/go ]; do sleep 0.05; done`);
    const first = start([...words, ...waits]);
    const ended = finished(first);
    await until(() => starts().length === 2);
    first.kill('SIGINT');
    await output(first, /ending: running tasks finish/);
    writeFileSync(join(project, 'go'), '');
    const drained = await ended;
    expect(drained, drained.stdout).toMatchObject({ code: 130 });
    expect([starts().length, rows().length]).toEqual([2, 2]);
    rmSync(join(project, 'go'));

    const second = start([...words, ...waits]);
    const stopped = finished(second);
    await until(() => starts().length === 4);
    second.kill('SIGINT');
    await output(second, /ending: running tasks finish/);
    second.kill('SIGINT');
    expect(await stopped).toMatchObject({ code: 130 });
    expect(rows().length).toBe(2);
    await nothingLeft();

    // They were requeued, so they are had at once.
    writeFileSync(join(project, 'go'), '');
    expect(await run([...words, ...waits])).toMatchObject({ code: 0 });
    expect([starts().length, rows().length]).toEqual([6, 4]);
  });

  test('after kill -9 nothing stays behind, and a new start goes on without doing anything twice at once', async () => {
    const words = ['run', '--on', 'a,b', '--gpus', 'all', '--grid', 'n=1..5'];
    const short = { GPU_OWNER_TIMEOUTS: 'silence:3000,silenceGrace:500' };
    const waits = task(`while [ ! -e ${project}/go ]; do sleep 0.05; done`);
    const first = start([...words, ...waits], short);
    await until(() => starts().length === 5);
    first.kill('SIGKILL');
    await nothingLeft();
    writeFileSync(join(project, 'go'), '');
    const again = await run([...words, ...waits], short);
    expect(again, again.stdout).toMatchObject({ code: 0 });
    expect([starts().length, rows().length]).toEqual([10, 5]);
  });

  test.each([
    ['a connection that breaks', 'silence:3000,silenceGrace:500', 'the connection broke'],
    ['workers that are killed', 'silence:600000,silenceGrace:500', 'gpu-owner was killed there'],
  ])('%s: its tasks end there, run again, and its workers come back', async (_, timeouts, why) => {
    const short = { GPU_OWNER_TIMEOUTS: timeouts };
    const words = ['run', '--on', 'a', '--gpus', '1', '--grid', 'n=1,2'];
    const waits = task(`echo $$ >> ${project}/pids; while [ ! -e ${project}/go ]; do sleep 0.05; done`);
    const manager = start([...words, ...waits], short);
    const ended = finished(manager);
    await until(() => starts().length === 1);
    const [ssh] = treeOf(manager.pid as number).filter((pid) => nameOf(pid) === 'ssh');
    const [worker] = processesWith(`HOME=${a.directory}/home`).filter((pid) =>
      wordsOf(pid).includes('worker'),
    );
    signalLiving((why === 'the connection broke' ? ssh : worker) as number, 'SIGKILL');
    await until(() => !isAlive(Number(linesOf('pids')[0])));
    await output(manager, /a: connected again/);
    writeFileSync(join(project, 'go'), '');
    const { code, stdout } = await ended;
    expect(code, stdout).toBe(0);
    expect(stdout).toContain(`a: ${why}`);
    expect([starts().length, rows().length]).toEqual([3, 2]);
  });

  test('status, logs, cancel and retry work as with local workers', async () => {
    const words = ['run', '--on', 'a,b', '--gpus', '1', '--grid', 'n=1,2'];
    const waits = task(`echo output of {n}; while [ ! -e ${project}/go{n} ]; do sleep 0.05; done`);
    const manager = start([...words, ...waits]);
    const ended = finished(manager);
    await until(() => starts().length === 2);
    const { running } = JSON.parse((await run(['status', '--json'])).stdout);
    expect(running.map(({ host }: { host: string }) => host).sort()).toEqual(['a', 'b']);
    // Where its output is, the worker tells once the command runs.
    const logs = async () => (await run(['logs', 'grid_0'])).stdout;
    await until(async () => !(await logs()).endsWith('\n<== no output yet: its command is being started\n'));
    expect(await logs()).toMatch(/^==> grid_0 on gpu0 \([ab]\) since .*\noutput of 1\n<== it runs\n$/);
    expect(await run(['cancel', 'grid_1'])).toMatchObject({ code: 0 });
    writeFileSync(join(project, 'go1'), '');
    await until(() => rows().length === 1);
    expect(await ended).toMatchObject({ code: 1 });
    writeFileSync(join(project, 'go2'), '');
    expect(await run(['retry', 'grid_1'])).toMatchObject({ code: 0 });
    expect(await run(words.slice(0, 5))).toMatchObject({ code: 0 });
    expect([starts().length, rows().length]).toEqual([3, 2]);
  });

  test('a trial that reports worse values on another host is stopped there', async () => {
    const epochs = join(import.meta.dirname, 'fixtures/epochs.py');
    const words = ['run', '--on', 'a', '--gpus', '1', '--grid', 'x=1,2', '--method', 'random'];
    const rule = ['--search-seed', '0', '--metric', 'loss', '--stop-early', 'hyperband:2'];
    const ended = await run([...words, ...rule, '--', python, epochs]);
    expect(ended, ended.stdout + ended.stderr).toMatchObject({ code: 0 });
    const [good, bad] = rows()
      .toSorted()
      .map((row) => row.split(','));
    expect(good?.slice(1)).toEqual(['1', '1', '', '']);
    expect(bad?.slice(1, 3)).toEqual(['2', '2']);
    expect(Number(bad?.at(-1))).toBeLessThan(12); // the column `stopped`
    expect(linesOf('terminated.txt')).toEqual([bad?.[0]]);
  });

  /** Processes there, but for sshd's. */
  const nothingLeft = () =>
    until(() => [a, b].every(({ directory }) => processesWith(`HOME=${directory}/home`).length === 0));
});
