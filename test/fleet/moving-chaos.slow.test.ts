// Jobs that move between hosts while networks are cut and processes are killed. A file outside counts what ran.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { finished, launcher, type Machine, pause } from '../support/machine.ts';
import { Network, whyNoNetworks } from '../support/namespaces.ts';
import { processesWith, signalAll, wordsOf } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const reason = whyNoSSHD() ?? whyNoNetworks();
const isLong = process.env.GPU_OWNER_SOAK !== undefined;
const JOBS = isLong ? 500 : 3;
const NAMES = isLong ? ['a', 'b', 'c', 'd', 'e'] : ['a', 'b'];

describe.skipIf(reason !== null)(`moving under fire${reason === null ? '' : ` (skipped: ${reason})`}`, () => {
  let hosts: Hosts;
  const networks: Network[] = [];
  const machines: Machine[] = [];

  beforeAll(async () => {
    hosts = await Hosts.start();
    for (const [i, name] of NAMES.entries()) {
      const network = new Network(10 + i);
      networks.push(network);
      expect(network.make()).toBe(true);
      machines.push(await hosts.addAway(name, network));
    }
  });
  afterAll(async () => {
    await hosts?.close();
    for (const network of networks) network.remove();
  });

  test(`of ${JOBS} jobs, each runs once to its end, or is named as lost`, {
    timeout: 3_600_000,
  }, async () => {
    const random = new Random(Number(process.env.GPU_OWNER_TEST_SEED ?? 1));
    const place = join(hosts.viewer.directory, 'project');
    mkdirSync(place);
    const witness = join(place, 'witness');
    writeFileSync(witness, '');
    const { env } = hosts;
    const run = (...args: string[]) => hosts.viewer.run([launcher, ...args], { env, cwd: place });
    const blocked = await Promise.all(
      NAMES.map((name, i) =>
        run('submit', '--on', name, '-n', '2', '--', 'sh', '-c', `until [ -e go${i} ]; do sleep 0.1; done`),
      ),
    );
    const addresses: string[] = [];
    while (addresses.length < JOBS) {
      const script = `echo ${addresses.length + 1} began >>'${witness}'; sleep 0.3; echo ${addresses.length + 1} ended >>'${witness}'`;
      const { stdout, stderr } = await run('submit', '--on', NAMES.join(), '--', 'sh', '-c', script);
      expect(stderr).toBe('');
      addresses.push(stdout.trim());
    }
    expect(addresses).toEqual(addresses.map((_, i) => `any:${i + 1}`));
    const waiting = finished(hosts.viewer.start([launcher, 'wait', ...addresses], { env, cwd: place }));
    let isOver = false;
    void waiting.then(() => {
      isOver = true;
    });
    const ours = () =>
      processesWith(`GPU_OWNER_SSH=${env.GPU_OWNER_SSH}`).filter((pid) => !wordsOf(pid).includes('wait'));
    /** Jobs that wait, and what asks for them: not commands that run, which would be lost. */
    const there = () =>
      machines
        .flatMap(({ directory }) => processesWith(`HOME=${directory}/home`))
        .filter((pid) => /settle-move|--json|gpu-owner-keeper\0wait/.test(wordsOf(pid).join('\0')));
    for (let step = 0; !isOver; step++) {
      const network = random.pick(networks) as Network;
      if (step < NAMES.length) writeFileSync(join(place, `go${step}`), '');
      const what = random.integer(isLong || step < 8 ? 4 : 8);
      if (what === 0) signalAll([random.pick(ours()) ?? 0].filter(Boolean), 'SIGKILL');
      if (what === 1) signalAll([random.pick(there()) ?? 0].filter(Boolean), 'SIGKILL');
      if (what === 2) network.set('down');
      await pause(random.integer(isLong ? 8_000 : 1_000));
      if (what === 2) network.set('up');
      network.set('up');
    }
    const { code, stderr } = await waiting;
    const lost = [...stderr.matchAll(/job any:(\d+) was lost/g)].map(([, id]) => Number(id));
    expect([0, 137], stderr).toContain(code);
    const lines = readFileSync(witness, 'utf8').trim().split('\n');
    for (const [i] of addresses.entries()) {
      const said = lines
        .filter((line) => line.startsWith(`${i + 1} `))
        .map((line) => line.slice(line.indexOf(' ') + 1));
      if (lost.includes(i + 1)) expect(said.length, `job ${i + 1}`).toBeLessThanOrEqual(2);
      else expect(said, `job ${i + 1}`).toEqual(['began', 'ended']);
      expect(said.filter((word) => word === 'began').length).toBeLessThanOrEqual(1);
    }
    expect((await run('wait', ...blocked.map(({ stdout }) => stdout.trim()))).code).toBe(0);
  });
});
