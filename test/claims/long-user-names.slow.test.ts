// Users with long names that begin alike, as directory services make them: the uid tells users apart.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readExposition, valuesOf } from '../support/exposition.ts';
import { command, Machine, output, until, whyNotNobody } from '../support/machine.ts';

const USERS = [
  { uid: 54_321, name: 'wilhelmina.featherstonehaugh-smythe@physics.example.edu' },
  { uid: 54_322, name: 'wilhelmina.featherstonehaugh-smythe@biology.example.edu' },
  { uid: 54_323, name: 'INSTITUTE-OF-THEORETICAL-COMPUTING\\w.featherstonehaugh' },
] as const;
const [physics, biology, domain] = USERS;

let machine: Machine;
beforeEach(() => {
  machine = new Machine('4');
  const accounts = USERS.map(({ uid, name }) => `${name}:x:${uid}:${uid}::/nonexistent:/bin/sh\n`);
  writeFileSync(join(machine.directory, 'passwd'), `root:x:0:0::/root:/bin/sh\n${accounts.join('')}`);
});
afterEach(() => machine.close());

/** A command of a user, where the accounts are these. */
const words = (uid: number, args: string[]) => [
  ...['unshare', '-m', '--propagation', 'private', 'sh', '-c'],
  'mount --bind "$0" /etc/passwd && exec "$@"',
  join(machine.directory, 'passwd'),
  ...['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--'],
  ...[process.execPath, command, ...args],
];
const starting = (uid: number) => ({ env: { XDG_STATE_HOME: machine.stateDirectory(uid) } });
const ask = async (uid: number, ...args: string[]) => {
  const { code, stdout, stderr } = await machine.run(words(uid, args), starting(uid));
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return stdout;
};

describe.skipIf(whyNotNobody())('long user names that begin alike [needs root]', () => {
  test('are different users for jobs, queue, top and metrics', async () => {
    for (const [{ uid }, name, count] of [
      [physics, 'first', '1'],
      [biology, 'second', '2'],
      [domain, 'third', '1'],
    ] as const) {
      const job = ['run', '-n', count, '--name', name, '--', 'sh', '-c', 'echo runs; sleep 600'];
      await output(machine.start(words(uid, job), starting(uid)), /runs/);
    }
    machine.start(words(biology.uid, ['run', '-n', '3', '--name', 'fourth', 'true']), starting(biology.uid));
    const queue = async () => JSON.parse(await ask(0, 'queue', '--json')) as { user: string; uid: number }[];
    await until(async () => (await queue()).length === 1, 'a request waits');
    expect(await queue()).toMatchObject([{ user: biology.name, uid: biology.uid }]);

    const jobs = async (user: string) =>
      (JSON.parse(await ask(0, 'jobs', '--json', '--user', user)) as { name: string }[]).map(
        ({ name }) => name,
      );
    for (const by of [
      (of: (typeof USERS)[number]) => of.name,
      ({ uid }: (typeof USERS)[number]) => String(uid),
    ]) {
      expect(await jobs(by(physics))).toEqual(['first']);
      expect(await jobs(by(biology))).toEqual(['second', 'fourth']);
      expect(await jobs(by(domain))).toEqual(['third']);
    }

    const [, totals] = (await ask(0, 'top')).split('USERS\n');
    expect(totals?.trimEnd().split('\n').sort()).toEqual([
      expect.stringMatching(/^ INSTITUTE-.*….*[.]featherstonehaugh +1 GPU, /),
      expect.stringMatching(/^ wilhelmina.*….*@biology[.]example[.]edu +2 GPUs, .* 1 waiting$/),
      expect.stringMatching(/^ wilhelmina.*….*@physics[.]example[.]edu +1 GPU, /),
    ]);
    const samples = readExposition(await ask(0, 'metrics'));
    const leased = valuesOf(samples, 'gpu_leased', 'user', 'uid', 'gpu');
    expect(
      Object.keys(leased)
        .map((key) => key.split(' ').slice(0, 2).join(' '))
        .sort(),
    ).toEqual(
      [domain, biology, biology, physics]
        .map(({ name, uid }) => `${name.replace('\\', '\\\\')} ${uid}`)
        .sort(),
    );
  });

  test('of users that do not exist are refused', async () => {
    const { code, stderr } = await machine.runCommand(['jobs', '--user', 'nosuchuser']);
    expect({ code, stderr }).toEqual({
      code: 64,
      stderr: expect.stringContaining("there is no user 'nosuchuser' on this machine: give a name or a uid"),
    });
    expect((await machine.runCommand(['jobs', '--user', '4711'])).code).toBe(0);
  });
});
