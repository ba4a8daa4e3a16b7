// HOST:JOB as the address of a job, over a real ssh, each host with simulated GPUs of its own.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { finished, launcher, type Machine, output, until } from '../support/machine.ts';
import { nameOf, processesWith, sendSignal, wordsOf } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const reason = whyNoSSHD();

describe.skipIf(reason !== null)(
  `jobs of other hosts${reason === null ? '' : ` (skipped: ${reason})`}`,
  () => {
    let hosts: Hosts;
    let a: Machine;
    let here: Machine;
    let env: Record<string, string | undefined>;
    let place: string;

    beforeAll(async () => {
      hosts = await Hosts.start();
      a = hosts.add('a', { files: { '.bashrc': 'echo noise; echo noise >&2' } });
      hosts.add('b');
      hosts.addName('down', ['Port 1']);
      env = hosts.env;
      here = hosts.add('here');
      place = join(hosts.viewer.directory, 'project');
      mkdirSync(place);
    });
    afterAll(() => hosts?.close());

    const run = (...args: string[]) => hosts.viewer.run([launcher, ...args], { env, cwd: place });
    const sh = (script: string) => ['--', 'sh', '-c', script];
    const submit = async (host: string, ...words: string[]) => {
      const { code, stdout, stderr } = await run('submit', '--on', host, ...words);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toMatch(new RegExp(`^${host}:\\d+\\n$`));
      return stdout.trim();
    };
    const file = (name: string) => join(place, name);
    const untilFile = (name: string) => `until [ -e '${file(name)}' ]; do sleep 0.1; done`;
    const connections = () =>
      processesWith('GPU_OWNER_SSH=').filter(
        (pid) => nameOf(pid) === 'ssh' && wordsOf(pid).includes(hosts.configuration),
      );
    /** Ends the connections of this machine's processes, as a network that breaks. */
    const cut = async () => {
      await until(() => connections().length > 0);
      for (const pid of connections()) sendSignal(pid, 'SIGKILL');
    };

    /** Runs ssh, and keeps what hosts answer. */
    const overheard = (name: string) => {
      const ssh = file(name);
      const script = `set -o pipefail; ${env.GPU_OWNER_SSH} "$@" | tee -a '${ssh}.answers'`;
      writeFileSync(ssh, `#!/bin/bash\n${script}\n`, { mode: 0o755 });
      return { ssh, answers: () => readFileSync(`${ssh}.answers`, { encoding: 'utf8', flag: 'a+' }) };
    };

    test('the address that submit prints is one for logs, wait, jobs, cancel and resubmit', async () => {
      const address = await submit('a', '--name', 'far', ...sh('echo one; echo two; exit 3'));
      expect(await run('wait', address)).toMatchObject({ code: 3, stdout: '', stderr: '' });
      expect(await run('logs', address)).toMatchObject({ code: 0, stdout: 'one\ntwo\n', stderr: '' });
      expect(await run('logs', 'a:far', '-n', '1')).toMatchObject({ code: 0, stdout: 'two\n', stderr: '' });
      const shown = await run('jobs', address);
      expect(shown).toMatchObject({ code: 0, stderr: '' });
      expect(shown.stdout).toMatch(new RegExp(`^job +${address} far\nstate +failed, exit code 3\n`));
      expect(shown.stdout).toContain(place);
      expect(JSON.parse((await run('jobs', address, '--json')).stdout)).toMatchObject([
        { host: 'a', name: 'far', exitCode: 3, directory: place },
      ]);
      const again = await run('resubmit', address);
      expect(again).toMatchObject({ code: 0, stderr: '', stdout: expect.stringMatching(/^a:\d+\n$/) });
      const long = await submit('b', '--', 'sleep', '600');
      expect(await run('cancel', long, address)).toMatchObject({
        code: 0,
        stdout: '',
        stderr: expect.stringMatching(/^gpu-owner: a: job \d+ had ended already\n$/),
      });
      const ended = await run('wait', again.stdout.trim(), long);
      expect(ended).toMatchObject({ code: 3, stderr: `gpu-owner: job ${long} was cancelled\n` });
    });

    test('one table has the jobs of all hosts, and hosts that are down are named', async () => {
      const address = await submit('b', '--name', 'listed', '--', 'true');
      await run('wait', address);
      const { code, stdout, stderr } = await run('jobs', '--hosts', 'a,b,down');
      expect(code).toBe(0);
      expect(stderr).toMatch(/^gpu-owner: down: connection refused/);
      expect(stdout.match(/^ *ID NAME/gm)).toHaveLength(1);
      expect(stdout).toMatch(new RegExp(`^ *${address} listed +completed`, 'm'));
      expect(stdout).toMatch(/^ *a:\d+ far +failed/m);
      expect(JSON.parse((await run('jobs', '--hosts', 'b', '--json')).stdout).b.jobs).toContainEqual(
        expect.objectContaining({ name: 'listed', host: 'b' }),
      );
    });

    test('logs -f shows each byte once, within half a second, also where the connection is lost', async () => {
      const stamps = untilFile('last').replace('sleep 0.1', 'date +%s%3N; sleep 0.3');
      const address = await submit('a', ...sh(`${stamps}; printf '\\377\\0end'`));
      const shown = hosts.viewer.start(
        ['sh', '-c', 'exec "$@" >shown', 'sh', launcher, 'logs', '-f', address],
        { env, cwd: place },
      );
      const ended = finished(shown);
      const delays: number[] = [];
      const bytes = () => readFileSync(file('shown'), { encoding: 'latin1', flag: 'a+' });
      await until(() => {
        const lines = bytes().trim().split('\n');
        if (lines.length > delays.length) delays.push(Date.now() - Number(lines.at(-1)));
        // On a busy machine, a login may take longer than that.
        return delays.length > 2 && Math.min(...delays) < 500;
      });
      await cut();
      writeFileSync(file('last'), '');
      const { code, stderr } = await ended;
      expect({ code, stderr }).toEqual({
        code: 0,
        stderr: expect.stringMatching(/^gpu-owner: a: .*; trying again\n$/),
      });
      expect(bytes()).toMatch(/^(?:\d{13}\n){3,}\xff\0end$/);
    });

    test('a part of an array is one for them too, also where the connection is lost', async () => {
      const part = `echo part $GPU_OWNER_ARRAY_ID; ${untilFile('end-$GPU_OWNER_ARRAY_ID').replaceAll("'", '"')}; echo end; exit 5`;
      const address = await submit('a', '--array', '0-1%1', ...sh(part));
      const [first, second] = [`${address}_0`, `${address}_1`];
      const { ssh, answers } = overheard('ssh-of-parts');
      const [waiting, following] = [['wait'], ['logs', '-f']].map((words) =>
        finished(
          hosts.viewer.start([launcher, ...words, first], {
            env: { ...env, GPU_OWNER_SSH: ssh },
            cwd: place,
          }),
        ),
      );
      await until(() => ['"state":"running"', '"bytes":"c'].every((answer) => answers().includes(answer)));
      await cut();
      writeFileSync(file('end-0'), '');
      expect(await following).toMatchObject({ code: 0, stdout: 'part 0\nend\n' });
      expect(await waiting).toMatchObject({ code: 5 });
      expect(await run('logs', first, '-n', '1')).toMatchObject({ code: 0, stdout: 'end\n', stderr: '' });
      expect(await run('cancel', second)).toMatchObject({ code: 0, stderr: '' });
      expect(await run('wait', second)).toMatchObject({
        code: 143,
        stderr: `gpu-owner: job ${second} was cancelled\n`,
      });
    });

    test('wait goes on where the connection is lost, and the exit code is that of the first that failed', async () => {
      const [slow, quick] = [
        await submit('a', ...sh(`${untilFile('go')}; exit 4`)),
        await submit('b', '--', 'false'),
      ];
      const own = Number((await here.runCommand(['submit', '--', 'true'])).stdout);
      const { ssh, answers } = overheard('ssh');
      const child = here.startCommand(['wait', String(own), slow, quick], { env: { GPU_OWNER_SSH: ssh } });
      const ended = finished(child);
      await until(() => ['running', 'failed'].every((state) => answers().includes(`"state":"${state}"`)));
      await cut();
      writeFileSync(file('go'), '');
      expect(await ended).toMatchObject({ code: 4 });
      expect(await run('wait', slow, '--timeout', '1h')).toMatchObject({ code: 4 });
      const endless = await submit('a', '--', 'sleep', '600');
      expect(await run('wait', endless, '--timeout', '1s')).toMatchObject({
        code: 75,
        stderr: expect.stringMatching(/timed out after 1s/),
      });
      await run('cancel', endless);
    });

    test('a job follows jobs of other hosts', async () => {
      const ssh = { GPU_OWNER_SSH: env.GPU_OWNER_SSH };
      const first = await submit('a', ...sh(untilFile('first')));
      const submitHere = (...words: string[]) => here.runCommand(['submit', ...words], { env: ssh });
      const good = await submitHere('--after-ok', first, ...sh(`cat '${file('first')}'`));
      expect(good).toMatchObject({ code: 0, stderr: '' });
      const jobs = async () => JSON.parse((await here.runCommand(['jobs', '--json'])).stdout);
      const id = Number(good.stdout);
      const find = async () => (await jobs()).find((job: { id: number }) => job.id === id);
      await until(async () => (await find()).reason === `after job ${first}`);
      await cut();
      await until(async () => /after job a:\d+ \(a: /.test((await find()).reason));
      writeFileSync(file('first'), 'written');
      expect((await here.runCommand(['wait', String(id)])).code).toBe(0);
      expect((await here.runCommand(['logs', String(id)])).stdout).toBe('written');

      const failing = await submit('a', ...sh(`${untilFile('fails')}; exit 9`));
      const never = await submitHere('--after-ok', failing, '--', 'true');
      writeFileSync(file('fails'), '');
      expect(await here.runCommand(['wait', never.stdout.trim()])).toMatchObject({
        code: 143,
        stderr: expect.stringContaining(`it was to follow job ${failing}, which failed with exit code 9`),
      });
      expect(await submitHere('--after-ok', failing, '--', 'true')).toMatchObject({
        code: 64,
        stderr: expect.stringMatching(/the job failed with exit code 9, so the new job would never start/),
      });
      const array = await submit('a', '--array', '0-1%1', ...sh(untilFile('go-on')));
      expect(await submitHere('--after', `${array}_1`, '--', 'true')).toMatchObject({
        code: 64,
        stderr: expect.stringContaining(`${array}_1 has not begun; give the whole array, ${array}`),
      });
      writeFileSync(file('go-on'), '');
      // A host needs no ssh to itself.
      const same = await submit('a', `--after=${failing}`, '--', 'true');
      expect((await run('wait', same)).code).toBe(0);
    });

    test('what can’t be an address, and hosts and jobs that are not there, end at once', async () => {
      const wrong: [string[], number, RegExp][] = [
        [['wait', 'down:1'], 69, /^gpu-owner: down: connection refused/],
        [['logs', '-f', 'down:1'], 69, /^gpu-owner: down: connection refused/],
        [['cancel', 'a:999'], 64, /^gpu-owner: a: you have no job 999/],
        [['resubmit', 'a:999'], 64, /^gpu-owner: a: you have no job 999/],
        [['logs', 'a:-f'], 64, /is not a job: give HOST:ID/],
        [['logs', '--', '-oProxyCommand=x:1'], 64, /not a valid host/],
      ];
      for (const [words, code, message] of wrong)
        expect(await run(...words), words.join(' ')).toMatchObject({
          code,
          stdout: '',
          stderr: expect.stringMatching(message),
        });
    });

    test('a list of jobs has one host', async () => {
      const ids: string[] = [];
      for (let i = 0; i < 2; i++) ids.push((await submit('a', 'true')).slice(2));
      const [first, last] = ids;
      expect(await run('wait', `a:${ids}`)).toMatchObject({ code: 0, stderr: '' });
      const { stdout } = await run('jobs', `a:${first}-${last}`, '--json');
      expect(JSON.parse(stdout).map(({ id }: { id: number }) => String(id))).toEqual(ids);
    });

    test('jobs --watch prints again what has changed', async () => {
      const address = await submit('a', ...sh(untilFile('watched')));
      const child = a.startCommand(['jobs', address.slice(2), '--json', '--watch=100ms']);
      await output(child, /"state":"running".*\n.*"state":"running"/s);
      writeFileSync(file('watched'), '');
      await output(child, /"state":"completed"/);
      child.kill();
    });

    test('no ssh is left', async () => {
      await until(() => processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).length === 0);
    });
  },
);
