// Jobs of `submit --on any` that wait, and move to a host that is free, over a real ssh.

import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { bootId, hostName } from '../../lib/platform/index.ts';
import { finished, launcher, Machine, NOBODY, until, whyNotNobody } from '../support/machine.ts';
import { nameOf, processesWith, sendSignal, stat, wordsOf } from '../support/processes.ts';
import { Hosts, whyNoSSHD, withoutDelays } from '../support/sshd.ts';
import { soakTest } from '../support/time.ts';

const reason = whyNoSSHD();
const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const movesDirectory = hostName().replace(/[^A-Za-z0-9._-]/g, '-');
/** How many jobs wait for long, in `npm run test:soak`. */
const RESTING = 50;
/** Words of a question of the mover, and when it is killed. All of them in `npm run test:soak`. */
const KILLS = (
  [
    ['--move=.*:held', 'after'],
    ['mover.* cancel', 'after'],
    ['mover.* confirm', 'after'],
    ['--move=.*--wait', 'after'],
    ['--move=.*--wait', 'before'],
    ['--move=.*:held', 'before'],
    ['mover.* cancel', 'before'],
    ['mover.* confirm', 'before'],
  ] as const
).slice(0, process.env.GPU_OWNER_SOAK ? 8 : 3);

describe.skipIf(reason !== null)(`moving jobs${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  let env: Record<string, string | undefined>;
  let place: string;
  const machines: Record<string, Machine> = {};

  beforeAll(async () => {
    hosts = await Hosts.start();
    place = join(hosts.viewer.directory, 'project');
    mkdirSync(place);
    for (const name of ['a', 'b', 'c']) machines[name] = hosts.add(name, { gpus: name === 'c' ? 1 : 2 });
    for (const name of ['by-agent', 'by-agent-too'])
      machines[name] = hosts.add(name, { config: ['IdentityAgent SSH_AUTH_SOCK'] });
    env = hosts.env;
  });
  afterEach(async () => {
    for (const pid of mover()) sendSignal(pid, 'SIGTERM');
    await until(() => mover().length === 0);
  });
  afterAll(() => hosts?.close());

  const run = (...args: string[]) => hosts.viewer.run([launcher, ...args], { env, cwd: place });
  const file = (name: string) => join(place, name);
  const mover = () =>
    processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).filter((pid) => wordsOf(pid).at(-1) === 'mover');
  const connections = () =>
    processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).filter((pid) => nameOf(pid) === 'ssh');
  const submit = async (...words: string[]) => {
    const { code, stdout, stderr } = await run('submit', ...words);
    expect({ code, stderr: withoutDelays(stderr) }).toEqual({ code: 0, stderr: '' });
    return stdout.trim();
  };
  const untilFile = (name: string) => ['--', 'sh', '-c', `until [ -e '${file(name)}' ]; do sleep 0.2; done`];
  const linesOf = (name: string) =>
    readFileSync(file(name), { encoding: 'utf8', flag: 'a+' }).split('\n').slice(0, -1);
  const show = async (address: string) => JSON.parse((await run('jobs', address, '--json')).stdout)[0];
  /** The file of a job: a test asks often, and `jobs` starts a process, and logs in for a job that runs. */
  const recordOf = (address: string) => {
    const moves = join(hosts.viewer.stateDirectory(), 'gpu-owner/moving', movesDirectory);
    return readFileSync(join(moves, `${address.slice('any:'.length)}.json`), 'utf8');
  };
  const placeOf = (address: string) => JSON.parse(recordOf(address)).at;
  const untilAt = async (address: string, host: string) => {
    await until(() => placeOf(address)?.host === host && placeOf(address).id !== null);
    expect((await show(address)).reason).toMatch(new RegExp(`waits as ${host}:\\d+, and may move`));
  };
  const untilRunning = async (address: string) => {
    await until(() => JSON.parse(recordOf(address)).step === 'settled');
    await until(async () => (await show(address)).state === 'running');
  };

  test('a job waits where it starts first, and moves to the host that is free before', async () => {
    const busy = [
      await submit('--on', 'a', '-n', '2', ...untilFile('a1')),
      await submit('--on', 'b', '-n', '2', ...untilFile('b1')),
    ];
    // The queue of a is longer.
    const ahead = await submit('--on', 'a', '-n', '2', '--', 'true');
    const script = `echo started >>'${file('starts')}'; exit 6`;
    const moving = await submit('--on', 'a,b,c', '-n', '2', '--', 'sh', '-c', script);
    expect(moving).toBe('any:1');
    await untilAt(moving, 'b');
    writeFileSync(file('a1'), '');
    expect(await run('wait', moving)).toMatchObject({ code: 6 });
    expect(await show(moving)).toMatchObject({
      ...{ host: 'any', id: 1, state: 'failed', exitCode: 6, limit: null },
      reason: expect.stringMatching(/^it is a:\d+$/),
    });
    const again = await run('resubmit', moving);
    expect(again).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/^a:\d+\n$/) });
    expect(await run('wait', again.stdout.trim())).toMatchObject({ code: 6 });
    writeFileSync(file('b1'), '');
    expect((await run('wait', ...busy, ahead)).code).toBe(0);
    expect(readFileSync(file('starts'), 'utf8')).toBe('started\nstarted\n');
    await until(() => mover().length === 0);
    expect(readdirSync(place).sort()).toEqual(['a1', 'b1', 'starts']);
  });

  test('parts of an array choose their hosts one by one, and one process moves all', async () => {
    const script = `printf 'GPU %s\\n' $GPU_OWNER_ARRAY_ID >>'${file('parts')}'; until [ -e '${file('array-go')}' ]; do sleep 0.1; done`;
    const submitted = await Promise.all(
      ['0-2', '3-5'].map((ids) =>
        run('submit', '--on', 'a,b', '--array', ids, '--output', file('out-%a'), '--', 'sh', '-c', script),
      ),
    );
    expect(submitted.map(({ code }) => code)).toEqual([0, 0]);
    const addresses = submitted.map(({ stdout }) => stdout.trim());
    for (const address of addresses) expect(address).toMatch(/^any:[\d,-]+$/);
    // Four run, and two wait in the queues.
    await until(() => linesOf('parts').length === 4);
    expect(mover()).toHaveLength(1);
    writeFileSync(file('array-go'), '');
    expect(await run('wait', ...addresses)).toMatchObject({ code: 0 });
    expect(linesOf('parts').sort()).toEqual(Array.from({ length: 6 }, (_, i) => `GPU ${i}`));
    expect(readdirSync(place).filter((name) => name.startsWith('out-')).length).toBe(6);
    const refused = await run('submit', '--on', 'a,b', '--array', '0-5%2', '--', 'true');
    expect(refused).toMatchObject({ code: 64, stderr: expect.stringMatching(/%2 needs one host/) });
  });

  soakTest('the mover logs in by the agent of the newest login, and says why a job can’t move', async () => {
    const keys = ['by-agent', 'by-agent-too'].map((name) => {
      const key = new RegExp(`Host ${name}\\n[^H]*IdentityFile (\\S+)`).exec(
        readFileSync(hosts.configuration, 'utf8'),
      )?.[1] as string;
      renameSync(key, `${key}.private`); // ssh finds the public one beside it
      return `${key}.private`;
    });
    /** An agent, as a login starts one. */
    const startAgent = async (name: string) => {
      const path = file(name);
      const agent = hosts.viewer.start(['ssh-agent', '-D', '-a', path]);
      await until(() => existsSync(path));
      const added = await hosts.viewer.run(['ssh-add', ...keys], { env: { ...env, SSH_AUTH_SOCK: path } });
      expect(added.code).toBe(0);
      return { agent, login: { ...env, SSH_AUTH_SOCK: path } };
    };
    const first = await startAgent('agent-1');
    const during = (login: typeof env, ...words: string[]) =>
      hosts.viewer.run([launcher, ...words], { env: login, cwd: place });
    const named = ['by-agent', 'by-agent-too'];
    for (const name of named)
      expect(
        await during(first.login, 'submit', '--on', name, '-n', '2', ...untilFile(`go-${name}`)),
      ).toMatchObject({ code: 0 });
    const submitted = await during(first.login, 'submit', '--on', named.join(), '-n', '2', '--', 'true');
    expect(submitted).toMatchObject({ code: 0, stderr: '' });
    const moving = submitted.stdout.trim();
    await until(() => placeOf(moving) !== null);
    const at = placeOf(moving).host;
    first.agent.kill('SIGTERM');
    await finished(first.agent);
    // Without that, the connections of before serve on.
    for (const ssh of connections()) sendSignal(ssh, 'SIGKILL');
    writeFileSync(file(`go-${named.find((name) => name !== at)}`), '');
    const refused = /it asks for a password, or refuses your key.*ssh-add/;
    await until(() => refused.test(recordOf(moving)));
    expect((await show(moving)).reason).toMatch(refused);
    const second = await startAgent('agent-2');
    expect((await during(second.login, 'jobs')).code).toBe(0);
    expect((await during(second.login, 'wait', moving)).code).toBe(0);
    expect(existsSync(file(`go-${at}`))).toBe(false);
    writeFileSync(file(`go-${at}`), '');
    second.agent.kill('SIGTERM');
  });

  soakTest(
    'run --on any joins the queue where it starts first, and stays there, with input, variables and exit code',
    async () => {
      const busy = [
        await submit('--on', 'a', '-n', '2', ...untilFile('run-a')),
        await submit('--on', 'b', '-n', '2', ...untilFile('run-b')),
        // So the queue of b is shorter.
        await submit('--on', 'a', '-n', '2', '--', 'true'),
      ];
      const words = [
        'run',
        '--on',
        'a,b,c',
        '-n',
        '2',
        '--env',
        'SECRET',
        '--',
        'sh',
        '-c',
        'cat; echo "$SECRET"; exit 9',
      ];
      const child = hosts.viewer.start([launcher, ...words], { env: { ...env, SECRET: "it's" }, cwd: place });
      child.stdin?.end('typed\n');
      const end = finished(child);
      const queue = async (name: string) =>
        JSON.parse((await (machines[name] as Machine).runCommand(['queue', '--json'])).stdout);
      await until(async () => (await queue('b')).length === 1);
      const other = hosts.viewer.start([launcher, 'run', '--on', 'b,b', '--', 'touch', file('never')], {
        env,
        cwd: place,
      });
      const interrupted = finished(other);
      await until(async () => (await queue('b')).length === 2);
      sendSignal(other.pid as number, 'SIGINT');
      expect(await interrupted).toMatchObject({ signal: 'SIGINT' });
      await until(async () => (await queue('b')).length === 1);
      writeFileSync(file('run-a'), '');
      await until(async () => (await machines.a?.states())?.every((state) => state === 'free') === true);
      expect(await queue('b')).toHaveLength(1);
      expect((await run('jobs')).stdout).not.toContain('any:');
      writeFileSync(file('run-b'), '');
      expect(await end).toMatchObject({
        ...{ code: 9, stdout: "typed\nit's\n" },
        stderr: expect.stringMatching(
          /^gpu-owner: c is left out: 2 GPUs .*\ngpu-owner: waits in the queue of b\n/,
        ),
      });
      expect((await run('wait', ...busy)).code).toBe(0);
      expect(existsSync(file('never'))).toBe(false);
    },
  );

  test('a wait that is over ends with 75', async () => {
    const busy = [
      await submit('--on', 'a', '-n', '2', ...untilFile('wait-a')),
      await submit('--on', 'b', '-n', '2', ...untilFile('wait-b')),
    ];
    const late = await submit('--on', 'a,b', '-n', '2', '--wait=1s', '--', 'touch', file('late'));
    expect(
      await run('run', '--on', 'a,b', '-n', '2', '--wait=1s', '--', 'touch', file('late')),
    ).toMatchObject({
      code: 75,
      stderr: expect.stringMatching(/timed out after 1 s/),
    });
    expect(await run('wait', late)).toMatchObject({ code: 75 });

    for (const name of ['wait-a', 'wait-b']) writeFileSync(file(name), '');
    expect((await run('wait', ...busy)).code).toBe(0);
    expect(existsSync(file('late'))).toBe(false);
  });

  test('a job follows one that moves', async () => {
    const here = new Machine(1);
    hosts.machines.push(here);
    const own = (words: string[], more = {}) =>
      here.runCommand(words, { env: { GPU_OWNER_SSH: env.GPU_OWNER_SSH, ...more }, cwd: place });
    const get = async (words: string[], more = {}) => {
      const { code, stdout, stderr } = await own(words, more);
      expect({ code, stderr }, words.join(' ')).toEqual({ code: 0, stderr: '' });
      return stdout.trim();
    };
    const busy = [
      await submit('--on', 'a', '-n', '2', ...untilFile('full-a')),
      await submit('--on', 'b', '-n', '2', ...untilFile('full-b')),
    ];
    const moving = await get(['submit', '--on', 'a,b', '-n', '2', ...untilFile('followed')]);
    const follower = await get(['submit', '--after-ok', moving, '--', 'touch', file('follower')]);
    const away = await get(['submit', '--on', 'a,b', '--after-ok', moving, '--', 'touch', file('away')]);
    const doomed = await get(['submit', '--on', 'a', '-n', '2', '--', 'true']);
    const vain = await get(['submit', '--on', 'a,b', '--after-ok', doomed, '--', 'touch', file('vain')]);
    const jobOf = async (id: string) => JSON.parse(await get(['jobs', id, '--json']))[0];
    expect(await jobOf(away)).toMatchObject({ state: 'moving', reason: `after job ${moving}` });
    expect((await own(['cancel', doomed])).code).toBe(0);
    expect(await own(['wait', vain])).toMatchObject({
      code: 143,
      stderr: expect.stringContaining(`it was to follow job ${doomed}, which was cancelled`),
    });
    await until(async () => (await jobOf(follower)).reason === 'after job any:1');
    const [, at = ''] = /waits as (.):/.exec((await jobOf(moving)).reason) ?? [];
    writeFileSync(file(at === 'a' ? 'full-b' : 'full-a'), '');
    await until(async () => (await jobOf(moving)).state === 'running');
    expect(existsSync(file('follower')) || existsSync(file('away'))).toBe(false);
    const [, host = ''] = /it is (.):/.exec((await jobOf(moving)).reason) ?? [];
    expect(host).not.toBe(at);
    writeFileSync(file('followed'), '');
    expect(await get(['wait', follower, away])).toBe('');
    expect(existsSync(file('follower')) && existsSync(file('away'))).toBe(true);
    expect(existsSync(file('vain'))).toBe(false);
    for (const name of ['full-a', 'full-b']) writeFileSync(file(name), '');
    expect((await run('wait', ...busy)).code).toBe(0);
  });

  test.skipIf(whyNotNobody() !== null)('another user’s job with the same number is another one', async () => {
    const shared = hosts.add('shared', { gpus: 1 });
    hosts.add('other', { gpus: 1 });
    const busy = [
      await submit('--on', 'shared', ...untilFile('shared')),
      await submit('--on', 'other', ...untilFile('other')),
      await submit('--on', 'other', '--', 'true'),
    ];
    const moving = await submit('--on', 'shared,other', ...untilFile('runs'));
    await untilAt(moving, 'shared');
    await until(() => recordOf(moving).includes(bootId()));
    // Served after all others.
    for (const id of ['1', '2']) {
      const { stdout } = await shared.runCommand(['submit', '--preemptible', '--', 'true'], {
        uid: NOBODY,
        cwd: '/',
      });
      expect(stdout).toBe(`${id}\n`);
    }
    writeFileSync(file('shared'), '');
    await untilRunning(moving);
    for (const name of ['runs', 'other']) writeFileSync(file(name), '');
    expect((await run('wait', moving, ...busy)).code).toBe(0);
    expect((await shared.runCommand(['wait', '1', '2'], { uid: NOBODY, cwd: '/' })).code).toBe(0);
  });

  test('a mover that is killed at any step runs no job twice, and loses none', async () => {
    const [x, y] = [hosts.add('x', { gpus: 8 }), hosts.add('y', { gpus: 8 })];
    const blocked = [
      await submit('--on', 'x', '-n', '8', ...untilFile('x')),
      await submit('--on', 'y', '-n', '8', ...untilFile('y')),
    ];
    // So all join the queue of x.
    await submit('--on', 'y', '-n', '8', '--', 'true');
    const kills = KILLS.map(([words, when], i) => {
      const state = join(hosts.viewer.directory, `state-${i}`);
      const settings = {
        WORDS: words,
        WHEN: when,
        ONCE: join(hosts.viewer.directory, `once-${i}`),
        SSH: env.GPU_OWNER_SSH,
      };
      return { ...env, ...settings, GPU_OWNER_SSH: fixture('killing-ssh'), XDG_STATE_HOME: state };
    });
    const start = (more: typeof env, ...words: string[]) =>
      hosts.viewer.run([launcher, ...words], { env: more, cwd: place });
    const jobs = await Promise.all(
      kills.map((more, i) =>
        start(more, 'submit', '--on', 'x,y', '--', 'sh', '-c', `echo ${i} >>'${file('runs')}'`),
      ),
    );
    expect(jobs.map(({ stdout }) => stdout)).toEqual(kills.map(() => 'any:1\n'));
    writeFileSync(file('y'), '');
    const ends = await Promise.all(kills.map((more) => start(more, 'wait', 'any:1')));
    expect(ends.map(({ code, stderr }) => `${code}${stderr}`)).toEqual(kills.map(() => '0'));
    const runs = readFileSync(file('runs'), 'utf8').trim().split('\n').map(Number);
    expect(runs.sort((a, b) => a - b)).toEqual(kills.map((_, i) => i));
    expect(kills.filter(({ ONCE }) => !existsSync(ONCE))).toEqual([]);
    writeFileSync(file('x'), '');
    expect((await run('wait', ...blocked)).code).toBe(0);
    for (const machine of [x, y])
      await until(async () => (await machine.states()).every((state) => state === 'free'));
  });

  test('cancel ends a job that waits; logs -f follows one to where it runs; variables and directory go with it', async () => {
    const busy = [
      await submit('--on', 'a', '-n', '2', ...untilFile('occupied-a')),
      await submit('--on', 'b', '-n', '2', ...untilFile('occupied-b')),
    ];
    const cancelled = await submit('--on', 'a,b', '-n', '2', '--name', 'no', '--', 'touch', file('never'));
    expect(await run('cancel', cancelled)).toMatchObject({ code: 0, stderr: '' });
    expect(await run('wait', cancelled)).toMatchObject({ code: 143 });
    expect(await show(cancelled)).toMatchObject({ state: 'cancelled' });
    const secret = "it's a\nsecret $HOME";
    const words = ['--env', 'GIVEN=x=y', '--env', 'TOKEN_*', '--env', 'PLAIN', '--chdir=/nonexistent'];
    const submitted = await hosts.viewer.run(
      [
        launcher,
        'submit',
        '--on',
        ['a', 'b'].map((name) => `${name}:${hosts.viewer.directory}`).join(),
        '-n',
        '2',
        ...words,
        '--',
        'sh',
        '-c',
        'pwd; echo "$GIVEN|$TOKEN_A|$PLAIN"',
      ],
      { env: { ...env, TOKEN_A: secret, PLAIN: 'p' }, cwd: place },
    );
    expect(submitted).toMatchObject({ code: 0, stderr: '' });
    const moving = submitted.stdout.trim();
    expect((await run('jobs')).stdout).toMatch(
      new RegExp(`^ *${moving} +moving .*\\n +waits as [ab]:\\d+, and may move`, 'm'),
    );
    const logs = run('logs', '-f', moving);
    for (const name of ['occupied-a', 'occupied-b']) writeFileSync(file(name), '');
    expect(await logs).toMatchObject({
      code: 0,
      stdout: expect.stringContaining(`${hosts.viewer.directory}\nx=y|${secret}|p\n`),
    });
    expect((await run('wait', ...busy)).code).toBe(0);
    expect(existsSync(file('never'))).toBe(false);
  });

  test('a host that does not answer is asked in pauses, and a place that was left there is not forgotten', async () => {
    const state = join(hosts.viewer.directory, 'state-gone');
    const moving = join(state, 'gpu-owner/moving', movesDirectory);
    mkdirSync(moving, { recursive: true });
    const place = (key: string) => ({ host: 'gone', key: key.repeat(32), id: 1, boot: null, uid: null });
    const job = {
      ...{ name: null, command: 'true', count: 1, words: ['--', 'true'], directory: '/', environment: [] },
      ...{ directories: [], hosts: [], giveUpAt: null, next: null, note: null },
      submitted: Date.now() - 2 * 86_400_000,
    };
    const left = { step: 'settled', settled: Date.now(), at: null, left: [place('1')] };
    const queued = { step: 'queued', settled: null, at: place('2'), left: [] };
    for (const [i, more] of [left, queued, { ...queued, at: place('3') }].entries())
      writeFileSync(join(moving, `${i + 1}.json`), JSON.stringify({ ...job, ...more, id: i + 1 }));
    for (const id of [2, 3]) writeFileSync(join(moving, `${id}.cancel`), '');
    const old = Date.now() / 1_000 - 2 * 86_400;
    utimesSync(join(moving, '3.cancel'), old, old);
    const [ssh, asked] = [file('gone-ssh'), file('gone-asked')];
    const note = `echo "$(date +%s%3N) $(printf %s "\${last##* }" | base64 -d | grep -o 'mover.*')" >>'${asked}'`;
    const script = `for word; do last=$word; done\n${note}\necho 'ssh: connect to host gone: No route to host' >&2\nexit 255`;
    writeFileSync(ssh, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    const mover = hosts.viewer.start([launcher, 'mover'], {
      env: { ...env, GPU_OWNER_SSH: ssh, XDG_STATE_HOME: state },
    });
    const timesOf = (key: string) =>
      readFileSync(asked, { encoding: 'utf8', flag: 'a+' })
        .split('\n')
        .filter((line) => line.includes(`mover ${key.repeat(32)}`))
        .map((line) => Number(line.split(' ')[0]));
    await until(() => mover.exitCode !== null || (timesOf('1').length >= 2 && timesOf('2').length >= 2));
    const [first = 0, second = 0] = timesOf('2');
    expect(second - first).toBeGreaterThan(1_500);
    const read = (id: number) => JSON.parse(readFileSync(join(moving, `${id}.json`), 'utf8'));
    expect(read(1).left).toHaveLength(1);
    expect(read(2)).toMatchObject({
      step: 'queued',
      note: expect.stringMatching(/isn't cancelled there yet/),
    });
    expect(read(3)).toMatchObject({ step: 'settled', note: 'cancelled' });
    const again = await hosts.viewer.runCommand(['resubmit', 'any:3'], {
      env: { ...env, XDG_STATE_HOME: state },
    });
    expect(again).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/any:3 has ended without a start/),
    });
    sendSignal(mover.pid, 'SIGTERM');
  });

  test('a job of which its host knows nothing is named as lost', async () => {
    const state = join(hosts.viewer.directory, 'state-lost');
    const moving = join(state, 'gpu-owner/moving', movesDirectory);
    mkdirSync(moving, { recursive: true });
    const at = { host: 'a', key: '3'.repeat(32), id: 999, boot: null, uid: null };
    const job = {
      ...{ id: 1, name: null, command: 'true', count: 1, words: ['--', 'true'], directory: '/' },
      ...{
        directories: [],
        environment: [],
        hosts: ['a'],
        submitted: Date.now(),
        giveUpAt: null,
      },
      ...{ step: 'queued', settled: null, at, next: null, left: [], note: null },
    };
    writeFileSync(join(moving, '1.json'), JSON.stringify(job));
    const more = { env: { ...env, XDG_STATE_HOME: state }, cwd: place };
    expect(await hosts.viewer.run([launcher, 'wait', 'any:1'], more)).toMatchObject({
      code: 137,
      stderr: expect.stringMatching(/job any:1 was lost/),
    });
    expect((await hosts.viewer.run([launcher, 'jobs', 'any:1'], more)).stdout).toMatch(
      /state +lost\n.*a knows no such job any more/s,
    );
  });

  test.skipIf(!process.env.GPU_OWNER_SOAK)(
    'jobs that wait for long cost one connection per host, and next to nothing',
    async () => {
      const names = ['a', 'b', 'c'];
      const busy = await Promise.all(
        names.map((name) => submit('--on', name, '-n', name === 'c' ? '1' : '2', ...untilFile('rest'))),
      );
      const jobs: string[] = [];
      while (jobs.length < RESTING) jobs.push(await submit('--on', 'a,b,c', '--', 'true'));
      await until(async () => {
        const listed = (await run('jobs')).stdout;
        return jobs.every((job) => new RegExp(`${job} .*\\n.* may move`).test(listed));
      });
      await until(() => connections().length === names.length);
      const [pid] = mover();
      const status = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
      expect(Number(/^Pss_Anon: +(\d+) kB/m.exec(status)?.[1])).toBeLessThan(20_000);
      const ticks = () => stat(pid as number)?.ticks ?? 0;
      const shares: number[] = [];
      while (shares.length < 5 && !shares.some((share) => share < 0.05)) {
        const [before, start] = [ticks(), performance.now()];
        await until(() => performance.now() > start + 1_000);
        shares.push((10 * (ticks() - before)) / (performance.now() - start));
      }
      console.log(
        shares,
        connections().length,
        /^Pss_Anon:.*/m.exec(status)?.[0],
        /^Pss:.*/m.exec(status)?.[0],
      );
      expect(Math.min(...shares)).toBeLessThan(0.05);
      writeFileSync(file('rest'), '');
      expect(await run('wait', ...busy, ...jobs)).toMatchObject({ code: 0, stderr: '' });
    },
  );

  test('a host can only lie about itself', async () => {
    const lies: [string, RegExp][] = [
      [
        '[{"id":1,"at":1,"bytes":"\\u001b[2J","size":0,"dropped":0,"isOver":false}]',
        /makes no sense: .*bytes has an impossible value/,
      ],
      ['\\033]0;x\\007[', /ended unexpectedly|makes no sense/],
    ];
    for (const [i, [text, message]] of lies.entries()) {
      hosts.add(`liar${i}`, {
        program: `case $1 in --version) echo 9;; *) printf '${text.replaceAll('%', '%%')}\\n';; esac`,
      });
      const { code, stdout, stderr } = await run('logs', `liar${i}:1`);
      expect({ code, stdout, stderr }).toEqual({
        code: 69,
        stdout: '',
        stderr: expect.stringMatching(message),
      });
      expect(stderr).not.toContain('\u001b');
    }
    hosts.add('wrong', { program: `case $1 in --version) echo 9;; *) printf '\\033[2J17\\n';; esac` });
    const again = await run('resubmit', 'wrong:1');
    expect(again.stdout).not.toContain('\u001b');
  });

  test('what is wrong with a job that moves is told', async () => {
    expect(await run('cancel', 'any:99')).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/you have no job any:99/),
    });
    const after = await run('submit', '--on', 'a,b', '--after', '1', '--', 'true');
    expect(after).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/say on which host that job is: HOST:JOB/),
    });
    const unset = await run('submit', '--on', 'a', '--env', 'NOT_SET', '--', 'true');
    expect(unset).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/NOT_SET: the variable is not set/),
    });
    const here = await run('run', '--chdir', '/tmp', '--', 'true');
    expect(here).toMatchObject({ code: 64, stderr: expect.stringMatching(/--chdir belongs to --on/) });
    const gone = await run('submit', '--on', 'a', '--chdir', '/not/there', '--', 'true');
    expect(gone).toMatchObject({
      code: 64,
      stderr: expect.stringMatching(/a: there is no directory '\/not\/there'/),
    });
  });
});
