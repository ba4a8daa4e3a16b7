// Limits of users, in whole processes. The holder of a lease is proved by files, not by records.
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { alice, bob, endHolder, RUN, startHolder } from '../support/holders.ts';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  python,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { Waiters } from './waiters.ts';

const OTHER = bob.uid;
const noSecondUser = whyNotNobody();

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

const jobFiles = () => readdirSync(machine.lockDirectory).filter((each) => each.startsWith('job-'));

/** Locks bytes of epochs in a lease's file, as any user can. */
async function lockEpochs(gpu: number, epochs: readonly number[], starting: typeof alice): Promise<void> {
  const source = `import fcntl, os, struct, sys
F_OFD_SETLK = 37
descriptor = os.open(sys.argv[1], os.O_RDWR)
for epoch in sys.argv[2:]:
    fcntl.fcntl(descriptor, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 1 + int(epoch), 1, 0))
print("locked", flush=True)
os.read(0, 1)`;
  const file = join(machine.lockDirectory, `${uuidOf(gpu)}.lease`);
  await output(machine.start([python, '-c', source, file, ...epochs.map(String)], starting), /^locked/m);
}

const holds = (count: number, starting: typeof alice) =>
  startHolder(machine, ['-n', String(count)], starting);

describe.skipIf(noSecondUser !== null)(`limits: ${noSecondUser ?? 'two users'}`, () => {
  test('a request above the limit is refused at once, with exit code 64', async () => {
    machine.configure(`limits:\n  gpus: 1\n  users: { ${OTHER}: { gpus: 3, for: 1h } }\n`);
    const refused = await machine.runCommand([...RUN, '-n', '2', '--', 'true'], alice);
    expect(refused.code).toBe(64);
    expect(refused.stderr).toMatch(/2 GPUs asked for, and \S+ may have 1 at a time here \(limits\.gpus/);
    expect((await machine.runCommand([...RUN, '-n', '3', '--', 'true'], bob)).code).toBe(0);
    const long = await machine.runCommand([...RUN, '--for', '2h', '--', 'true'], bob);
    expect(long.code).toBe(64);
    expect(long.stderr).toMatch(/--for: 2 h is more than the 1 h that .* jobs may run here/);
    const submitted = await machine.runCommand(['submit', '-n', '2', '--', 'true'], alice);
    expect(submitted.code).toBe(64);
    // Root has no limit.
    expect((await machine.runCommand([...RUN, '-n', '4', '--for', '9h', '--', 'true'])).code).toBe(0);
  });

  test('the most generous group counts, and a user’s own file can only lower the limit', async () => {
    machine.configure(`limits:\n  gpus: 1\n  groups: { ${NOBODY}: { gpus: 2 }, nosuchgroup: { gpus: 4 } }\n`);
    expect((await machine.runCommand([...RUN, '-n', '2', '--', 'true'], alice)).code).toBe(0);
    expect((await machine.runCommand([...RUN, '-n', '3', '--', 'true'], alice)).code).toBe(64);
    const own = join(machine.directory, 'own');
    execFileSync('mkdir', ['-p', join(own, 'gpu-owner')]);
    execFileSync('sh', ['-c', `echo 'limits: { gpus: 1 }' > ${own}/gpu-owner/config.yaml`]);
    chmodSync(join(own, 'gpu-owner/config.yaml'), 0o644);
    const env = { XDG_CONFIG_HOME: own };
    expect((await machine.runCommand([...RUN, '-n', '2', '--', 'true'], { ...alice, env })).code).toBe(64);
  });

  test('without --for, a command ends at the limit', async () => {
    machine.configure('limits: { for: 1s }\n');
    const { code } = await machine.runCommand([...RUN, '--', 'sleep', '600'], alice);
    expect(code).toBe(124);
  });

  test('hold ends at the limit, says so, and its record tells when', async () => {
    machine.configure('limits: { for: 2s }\n');
    const began = Date.now();
    const holder = machine.startCommand(['hold', '--placeholder', 'none'], alice);
    const ended = finished(holder);
    await output(holder, /visibleDevices/);
    const [{ lease }] = JSON.parse((await machine.runCommand(['status', '--json'])).stdout);
    expect(Date.parse(lease.until) - began).toBeGreaterThan(1_000);
    const { code, stderr } = await ended;
    expect(code).toBe(124);
    expect(stderr).toMatch(
      /time limit of 2 s is over \(limits\.for in the configuration\): the GPUs are released/,
    );
    expect(Date.now() - began).toBeGreaterThanOrEqual(2_000);
    expect(await machine.states()).toEqual(['free', 'free', 'free', 'free']);
  });

  test('a user who changes the mode of a job’s file, or removes it, gets no more', async () => {
    machine.configure('limits: { gpus: 1 }\n');
    const first = await holds(1, alice);
    const claim = async () => (await machine.runCommand([...RUN, '--no-wait', '--', 'true'], alice)).code;
    for (const name of jobFiles()) chmodSync(join(machine.lockDirectory, name), 0o700);
    expect(await claim()).toBe(75);
    for (const name of jobFiles()) rmSync(join(machine.lockDirectory, name));
    expect(await claim()).toBe(75);
    await endHolder(first);
    expect(await claim()).toBe(0);
  });

  test('locks of others in a lease’s file neither count for a user, nor hide the holder', async () => {
    machine.configure('limits: { gpus: 2 }\n');
    const [alices, bobs] = [await holds(1, alice), await startHolder(machine, ['--devices', '1'], bob)];
    const [epoch = 0] = jobFiles()
      .filter((name) => statSync(join(machine.lockDirectory, name)).uid === alice.uid)
      .map((name) => Number(name.slice('job-'.length)));
    await lockEpochs(1, [epoch], bob);
    expect((await machine.runCommand([...RUN, '--no-wait', '--', 'true'], alice)).code).toBe(0);
    await lockEpochs(
      1,
      Array.from({ length: 70 }, (_, i) => 2 * i),
      bob,
    );
    const refused = await machine.runCommand([...RUN, '--no-wait', '-n', '2', '--', 'true'], bob);
    expect(refused.stderr).toMatch(/GPU 2: free, but you have 1 of the 2 GPUs/);
    for (const holder of [alices, bobs]) await endHolder(holder);
  });

  test('a command of a sweep ends at the limit: its task has failed, and is not tried again', async () => {
    machine.configure('limits: { for: 1s }\n');
    const directory = join(machine.directory, 'sweep');
    mkdirSync(directory);
    chownSync(directory, NOBODY, NOBODY);
    const words = ['exp', 'run', '--gpus', '1', '--grid', 'lr=1', '--', 'sleep', '600'];
    const { code, stdout, stderr } = await machine.runCommand(words, { ...alice, cwd: directory });
    expect({ code, failed: stdout + stderr }).toEqual({
      code: 1,
      failed: expect.stringMatching(/the time limit of 1 s is over \(limits\.for in the configuration\)/),
    });
  });

  test('a request that waits for GPUs of its own user delays nobody, and says so', async () => {
    machine.configure('limits: { gpus: 2 }\n');
    const first = await holds(2, alice);
    const refused = await machine.runCommand([...RUN, '--no-wait', '--', 'true'], alice);
    expect(refused.code).toBe(75);
    expect(refused.stderr).toMatch(/GPU 2: free, but you have 2 of the 2 GPUs that \S+ may have at a time/);
    const second = machine.startCommand([...RUN, '-n', '2', '--', 'true'], alice);
    const served = finished(second);
    await output(second, /you have 2 of the 2 GPUs/);
    const waiters = new Waiters(machine);
    await waiters.untilWaiting(1);
    expect((await waiters.queue())[0]).toMatchObject({
      why: expect.stringMatching(/^at its user's limit \(\S+ holds 2 of 2\), so others go first$/),
      details: [],
    });
    // Neither who waits nor who doesn't stands behind it.
    expect((await machine.runCommand([...RUN, '-n', '2', '--', 'true'], bob)).code).toBe(0);
    expect((await machine.runCommand([...RUN, '--no-wait', '-n', '2', '--', 'true'], bob)).code).toBe(0);
    expect((await waiters.queue()).length).toBe(1);
    first.stdin?.end();
    expect((await served).code).toBe(0);
  });

  describe('of a group together', () => {
    // Two users whose group is nogroup, as directory services say.
    const [carol, dave] = [alice, { uid: 4, gid: NOBODY, umask: '022' }];
    const configure = (together: number) =>
      machine.configure(`order: fifo\nlimits: { groups: { ${NOBODY}: { together: ${together} } } }\n`);

    test('its members never hold more, and are served as soon as one of them ends', async () => {
      configure(3);
      const witness = join(machine.directory, 'witness');
      mkdirSync(witness);
      chmodSync(witness, 0o777);
      const look = `touch ${witness}/$$; ls ${witness} | wc -l; sleep 1; rm ${witness}/$$`;
      const ends = [carol, dave, carol, dave, dave].map((user) =>
        finished(machine.startCommand([...RUN, '--', 'sh', '-c', look], user)),
      );
      const seen: number[] = [];
      for (const { code, stdout } of await Promise.all(ends)) {
        expect(code).toBe(0);
        seen.push(Number(stdout));
      }
      expect(Math.max(...seen)).toBe(3);
    });
  });

  const root = ['unshare', '-r', '--'];
  const noNamespace =
    spawnSync('setpriv', [`--reuid=${NOBODY}`, '--clear-groups', ...root, 'true']).status !== 0;
  test.skipIf(noNamespace)('root of a user namespace is the user outside of it', async () => {
    machine.configure(`limits: { users: { ${NOBODY}: { gpus: 2 } } }\nbookings: { users: [${OTHER}] }\n`);
    const inside = (...words: string[]) => machine.run([...root, process.execPath, command, ...words], alice);
    expect((await inside(...RUN, '-n', '3', '--', 'true')).stderr).toMatch(/may have 2 at a time here/);
    const urgent = await inside(...RUN, '--urgent', '--', 'true');
    expect([urgent.code, urgent.stderr]).toEqual([77, expect.stringMatching(/may make no urgent requests/)]);
    expect((await inside('book', '--for', '1h')).code).toBe(77);
    const held = await holds(2, alice);
    const more = await inside(...RUN, '--no-wait', '--', 'true');
    expect([more.code, more.stderr]).toEqual([75, expect.stringMatching(/you have 2 of the 2 GPUs/)]);
    held.stdin?.end();
    expect((await machine.runCommand(['book', '-n', '4', '--from', '+1h', '--for', '1h'])).code).toBe(0);
    const booked = await inside(...RUN, '--no-wait', '--', 'true');
    expect([booked.code, booked.stderr]).toEqual([
      75,
      expect.stringMatching(/free, but booked for root from/),
    ]);
  });

  test('a record that another user forges does not lift a limit', async () => {
    machine.configure('limits: { gpus: 2 }\n');
    const forge = () => {
      const record = JSON.stringify({ user: 'x', uid: OTHER, pid: 1, generation: 4711, boot: 'x' });
      const code = `import glob,sys
for name in glob.glob(${JSON.stringify(join(machine.lockDirectory, 'GPU-*.lease'))}):
  with open(name, 'r+b', buffering=0) as file: file.write(${JSON.stringify(record)}.encode().ljust(4095) + b'\\n')
open(${JSON.stringify(join(machine.lockDirectory, 'job-4711'))}, 'w').close()`;
      return machine.run([python, '-c', code], bob);
    };
    const [held, others] = [await holds(2, alice), await holds(2, bob)];
    expect((await forge()).stderr).toBe('');
    await endHolder(others);
    // Alice's two GPUs still count for her, and not for Bob.
    expect((await machine.runCommand([...RUN, '--no-wait', '--', 'true'], alice)).code).toBe(75);
    expect((await machine.runCommand([...RUN, '--no-wait', '-n', '2', '--', 'true'], bob)).code).toBe(0);
    await endHolder(held);
  });
});
