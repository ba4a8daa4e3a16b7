// Jobs that move between hosts while networks are cut, hosts fall silent, processes are killed, and the ssh-agent ends. A file outside
// counts what ran.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hostName } from '../../lib/platform/index.ts';
import { finished, launcher, type Machine, pause, until } from '../support/machine.ts';
import { Network, whyNoNetworks } from '../support/namespaces.ts';
import { processesWith, signalAll, wordsOf } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { Hosts, whyNoSSHD, withoutDelays } from '../support/sshd.ts';
import { soakTest } from '../support/time.ts';

const reason = whyNoSSHD() ?? whyNoNetworks();
const isLong = process.env.GPU_OWNER_SOAK !== undefined;
const JOBS = isLong ? 500 : 3;
const SECONDS = isLong ? 2 : 0.3;
const NAMES = isLong ? ['a', 'b', 'c', 'd', 'e'] : ['a', 'b'];

describe.skipIf(reason !== null)(`moving under fire${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  const networks: Network[] = [];
  const machines: Machine[] = [];
  let place: string;
  let agent: ChildProcess;
  const socket = () => join(hosts.viewer.directory, 'agent');
  const environment = () => ({ ...hosts.env, SSH_AUTH_SOCK: socket() });
  const run = (...args: string[]) =>
    hosts.viewer.run([launcher, ...args], { env: environment(), cwd: place });
  const keys: string[] = [];
  /** Starts the only program that has the keys. */
  const startAgent = async () => {
    rmSync(socket(), { force: true });
    agent = hosts.viewer.start(['ssh-agent', '-D', '-a', socket()]);
    await until(() => existsSync(socket()));
    expect(await hosts.viewer.run(['ssh-add', ...keys], { env: environment() })).toMatchObject({ code: 0 });
  };

  beforeAll(async () => {
    hosts = await Hosts.start();
    place = join(hosts.viewer.directory, 'project');
    mkdirSync(place);
    for (const [i, name] of NAMES.entries()) {
      const network = new Network(10 + i);
      networks.push(network);
      expect(network.make()).toBe(true);
      machines.push(await hosts.addAway(name, network, { config: ['IdentityAgent SSH_AUTH_SOCK'] }));
      const own = new RegExp(`Host ${name}\\n[^H]*IdentityFile (\\S+)`);
      const key = own.exec(readFileSync(hosts.configuration, 'utf8'))?.[1] as string;
      renameSync(key, `${key}.private`); // ssh finds the public one beside it
      keys.push(`${key}.private`);
    }
    await startAgent();
  });
  afterAll(async () => {
    agent?.kill('SIGKILL');
    await hosts?.close();
    for (const network of networks) network.remove();
  });

  soakTest(
    'a job that waits on a host joins another queue once that host has rebooted, though it has kept no jobs',
    async () => {
      const until2 = (name: string) => [
        '-n',
        '2',
        '--',
        'sh',
        '-c',
        `until [ -e ${name} ]; do sleep 0.1; done`,
      ];
      for (const name of ['a', 'b', 'b']) await run('submit', '--on', name, ...until2('rebooted'));
      const { stdout } = await run('submit', '--on', 'a,b', '-n', '2', '--', 'sh', '-c', 'echo ran >>ran');
      const moving = stdout.trim();
      const path = join(
        hosts.viewer.stateDirectory(),
        'gpu-owner/moving',
        hostName(),
        `${moving.slice('any:'.length)}.json`,
      );
      await until(() => {
        const { at } = JSON.parse(readFileSync(path, 'utf8'));
        return at?.id === 2 && at.boot !== null;
      });
      await hosts.reboot('a', networks[0] as Network, machines[0] as Machine, false);
      writeFileSync(join(place, 'rebooted'), '');
      expect(await run('wait', moving)).toEqual({ code: 0, signal: null, stdout: '', stderr: '' });
      expect(readFileSync(join(place, 'ran'), 'utf8')).toBe('ran\n');
    },
  );

  test(`of ${JOBS} jobs, each runs once to its end, or is named as lost`, {
    timeout: 3_600_000,
  }, async () => {
    const random = new Random(Number(process.env.GPU_OWNER_TEST_SEED ?? 1));
    const witness = join(place, 'witness');
    writeFileSync(witness, '');
    const blocked = await Promise.all(
      NAMES.map((name, i) =>
        run('submit', '--on', name, '-n', '2', '--', 'sh', '-c', `until [ -e go${i} ]; do sleep 0.1; done`),
      ),
    );
    /** By address. In the long form, the fire begins with the first: then a submission may fail, and its job has none. */
    const numbers = new Map<string, number>();
    const runs: Promise<{ number: number; code: number | null }>[] = [];
    let submitted = 0;
    const submitAll = async () => {
      while (submitted < JOBS) {
        const number = ++submitted;
        const script = `echo ${number} began >>'${witness}'; sleep ${SECONDS}; echo ${number} ended >>'${witness}'`;
        const words = ['--on', NAMES.join(), '--', 'sh', '-c', script];
        // Every third is a command of `run`, which may be killed with its connection.
        if (number % 3 === 0) {
          const ended = hosts.viewer.run([launcher, 'run', ...words], { env: environment(), cwd: place });
          runs.push(ended.then(({ code }) => ({ number, code })));
          continue;
        }
        const { stdout, stderr } = await run('submit', ...words);
        if (!isLong) expect(withoutDelays(stderr)).toBe('');
        if (stdout !== '') numbers.set(stdout.trim(), number);
      }
    };
    let isSubmitted = false;
    let isOver = false;
    const waiting = (async () => {
      await Promise.all([submitAll(), submitAll()]);
      isSubmitted = true;
      const env = environment();
      for (;;) {
        const child = hosts.viewer.start([launcher, 'wait', ...numbers.keys()], { env, cwd: place });
        const ended = await finished(child);
        // A host that doesn't answer at first.
        if (ended.code === 69) continue;
        await Promise.all(runs);
        isOver = true;
        return ended;
      }
    })();
    if (!isLong) await until(() => isSubmitted);
    const ours = () =>
      processesWith(`GPU_OWNER_SSH=${hosts.env.GPU_OWNER_SSH}`).filter(
        (pid) => !wordsOf(pid).includes('wait'),
      );
    const living = ({ directory }: Machine) => processesWith(`HOME=${directory}/home`);
    /** Jobs that wait, and what asks for them: not commands that run, which would be lost. */
    const there = () =>
      machines
        .flatMap(living)
        .filter((pid) => /\0mover\0|--json|gpu-owner-keeper\0wait/.test(wordsOf(pid).join('\0')));
    /** How often each was done: a silent host counts if processes of it were stopped, a killed one if there was one. */
    const faults = { here: 0, there: 0, cut: 0, silent: 0, agent: 0 };
    /** Each of them, before a job that blocks a host ends. */
    const first = [0, 1, 2, 3, 4];
    let steps = 0;
    let released = 0;
    for (; !isOver; steps++) {
      const i = random.integer(networks.length);
      const network = networks[i] as Network;
      const what =
        first.splice(random.integer(first.length), 1)[0] ?? random.integer(isLong ? 8 : steps < 8 ? 6 : 12);
      if (isSubmitted && first.length === 0 && released < NAMES.length)
        writeFileSync(join(place, `go${released++}`), '');
      const victim = what === 0 ? random.pick(ours()) : what === 1 ? random.pick(there()) : undefined;
      if (victim !== undefined) {
        signalAll([victim], 'SIGKILL');
        faults[what === 0 ? 'here' : 'there']++;
      }
      if (what === 2) {
        network.set('down');
        faults.cut++;
      }
      const silent = what === 3 ? living(machines[i] as Machine) : [];
      signalAll(silent, 'SIGSTOP');
      if (silent.length > 0) faults.silent++;
      if (what === 4 && agent.kill('SIGKILL')) faults.agent++;
      if (isLong && what === 6) await hosts.reboot(NAMES[i] as string, network, machines[i] as Machine, true);
      if (isLong && what === 7)
        signalAll([random.pick(living(machines[i] as Machine)) ?? 0].filter(Boolean), 'SIGKILL');
      await pause(random.integer(isLong ? 8_000 : 1_000));
      network.set('up');
      signalAll(silent, 'SIGCONT');
      if (what === 4) await startAgent();
    }
    const { code, stderr } = await waiting;
    // The other hosts may have been enough for all.
    while (released < NAMES.length) writeFileSync(join(place, `go${released++}`), '');
    // Where any process may be killed: the command itself, too.
    const named = isLong ? /(\S+:\d+) was lost|(\S+:\d+): exit code 137/g : /(\S+:\d+) was lost/g;
    const lost = [...stderr.matchAll(named)].map(([, lost, killed]) => lost ?? killed);
    expect([0, 137], stderr).toContain(code);
    for (const [fault, times] of Object.entries(faults)) expect(times, fault).toBeGreaterThan(0);
    const lines = readFileSync(witness, 'utf8').trim().split('\n');
    const said = (number: number) =>
      lines.filter((line) => line.startsWith(`${number} `)).map((line) => line.slice(line.indexOf(' ') + 1));
    if (isLong)
      console.log(
        `faults ${JSON.stringify(faults)}; ${submitted} submitted, ${numbers.size} with an address, ${runs.length} runs, ${lost.length} named as lost or killed, ${lines.filter((line) => line.endsWith('ended')).length} ended; ${steps} steps`,
      );
    for (let number = 1; number <= submitted; number++)
      expect(said(number).filter((word) => word === 'began').length, `job ${number}`).toBeLessThanOrEqual(1);
    for (const [address, number] of numbers) {
      if (!lost.includes(address))
        expect(said(number), `${address}, job ${number}`).toEqual(['began', 'ended']);
    }
    for (const { number, code } of await Promise.all(runs))
      if (code === 0) expect(said(number), `run ${number}`).toEqual(['began', 'ended']);
    const { code: others } = await run('wait', ...blocked.map(({ stdout }) => stdout.trim()));
    expect(isLong ? [0, 137] : [0]).toContain(others);
    for (const machine of machines) {
      await until(async () => (await machine.states()).every((state) => state === 'free'));
      expect((await machine.runCommand(['queue', '--json'])).stdout.trim()).toBe('[]');
    }
  });
});
