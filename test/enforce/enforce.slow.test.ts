import {
  chmodSync,
  chownSync,
  copyFileSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { alice, bob, endHolder, startHolder } from '../support/holders.ts';
import {
  command,
  Machine,
  NOBODY,
  output,
  processState,
  python,
  type Starting,
  UNSHARE,
  until,
  uuidOf,
  whyNoNamespace,
  whyNotNobody,
} from '../support/machine.ts';
import { withTimeouts } from '../support/time.ts';

const ROUNDS = process.env.GPU_OWNER_SOAK ? 10_000 : 20;
const SEED = Number(process.env.GPU_OWNER_TEST_SEED ?? 1);
const CAROL = NOBODY - 2;
const LIBRARY = join(binaries(), 'simulator/libcuda.so.1');
const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const noSecondUser = whyNotNobody() ?? whyNoNamespace();

let machine: Machine;
beforeEach(() => {
  machine = new Machine(3);
  // So the lock directory is root's.
  mkdirSync(machine.lockDirectory, { recursive: true });
  for (const path of [machine.lockDirectory, dirname(machine.lockDirectory)]) chmodSync(path, 0o1777);
});
afterEach(() => machine.close());

/** A process that computes on a GPU without a claim. */
async function intrude(gpu: number, mode: string, starting: Starting): Promise<number> {
  const child = machine.start([python, fixture('intruder.py'), LIBRARY, String(gpu), mode], starting);
  return Number(await output(child, /^ready (\d+)/m));
}

/** One that computes on GPU 0 in a user namespace, each moment as another of its users. */
async function intrudeAsMany({ uid }: { uid: number }): Promise<number> {
  const child = machine.start([python, fixture('uids.py'), LIBRARY, String(uid)]);
  return Number(await output(child, /^ready (\d+)/m));
}

/** Starts `gpu-owner enforce`, with its lines. */
function enforce(options: readonly string[] = [], more: NodeJS.ProcessEnv = {}, user: object = {}) {
  const env = { ...withTimeouts({ enforceLook: 100, enforceKill: 400 }), ...more };
  const child = machine.startCommand(['enforce', ...options], { env, ...user });
  const lines: string[] = [];
  child.stdout?.on('data', (text) => lines.push(...String(text).split('\n').filter(Boolean)));
  return { child, lines };
}

const isAlive = (pid: number) => !['Z', null].includes(processState(pid));
const ended = (...pids: number[]) => until(() => !pids.some(isAlive));
/** Waits for the end of a look. */
async function lookAgain(state: string): Promise<void> {
  const before = existsSync(state) ? statSync(state).mtimeMs : 0;
  await until(() => existsSync(state) && statSync(state).mtimeMs > before);
}

const looks = (enforcer: { lines: string[] }, pattern: RegExp) =>
  until(() => enforcer.lines.some((line) => pattern.test(line)));

describe.skipIf(noSecondUser !== null)(`enforce: ${noSecondUser ?? 'two users'}`, () => {
  test('only root ends processes of others; without `enforce` in the configuration it only tells', async () => {
    await startHolder(machine, ['--devices', '0'], alice);
    const pid = await intrude(0, 'plain', bob);
    const enforcer = enforce();
    await looks(
      enforcer,
      /^would warn .*, uid 65533\) computes on GPU 0, which is leased by nobody: SIGTERM in 5 min$/,
    );
    enforcer.child.kill();
    machine.configure('enforce: { grace: 0s }\n');
    const refused = await machine.runCommand(['enforce'], bob);
    expect(refused.code).toBe(77);
    const dry = enforce(['--dry-run']);
    await looks(dry, /^would send SIGTERM to /);
    expect(isAlive(pid)).toBe(true);
    expect(existsSync(join(machine.lockDirectory, '../enforce.json'))).toBe(false);
  });

  test('ends nothing where the lock directory belongs to a user, who can remove leases of others', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const pid = await intrude(0, 'plain', bob);
    chownSync(machine.lockDirectory, alice.uid, alice.uid);
    const enforcer = enforce();
    await looks(enforcer, /^the lock directory .*\/locks belongs to nobody, .*: this is a dry run\. /);
    await looks(enforcer, /^would send SIGTERM to /);
    expect(isAlive(pid)).toBe(true);
    chownSync(machine.lockDirectory, 0, 0);
    await ended(pid);
  });

  test('the state of a simulated machine is written through no link of its user', async () => {
    machine.configure('enforce: { grace: 1h }\n');
    const target = join(machine.directory, 'target');
    writeFileSync(target, 'mine');
    const state = join(machine.lockDirectory, '../enforce.json');
    for (const name of [state, `${state}.new`]) symlinkSync(target, name);
    enforce();
    await until(() => lstatSync(state).isFile());
    expect(readFileSync(target, 'utf8')).toBe('mine');
  });

  test('a change of the configuration counts at once, and a mistake in it changes nothing', async () => {
    machine.configure('enforce: { grace: 1h }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const pid = await intrude(0, 'plain', bob);
    const enforcer = enforce();
    await looks(enforcer, /^warned /);
    machine.configure('enforce: { grace: soon }\n');
    await looks(enforcer, /^the rules stay as they were: .*soon/);
    expect(isAlive(pid)).toBe(true);
    machine.configure('enforce: { grace: 0s }\n');
    await ended(pid);
    expect(enforcer.lines.filter((line) => /^the (rules|configuration)/.test(line))).toHaveLength(2);
    machine.configure('');
    await looks(enforcer, /^the configuration has changed; this is a dry run/);
  });

  test('intruders end, whatever they do, and no process of others does', async () => {
    machine.configure(`enforce: { grace: 1s, claims: required, except: { users: ['${CAROL}'] } }\n`);
    const holder = await startHolder(machine, ['--devices', '0'], alice);
    // All of these are in one cgroup, that of the holder.
    const innocent = [
      await intrude(0, 'plain', alice),
      await intrude(0, 'plain', {}),
      await intrude(2, 'plain', { uid: CAROL }),
    ];
    const job = machine.startCommand(
      [
        'run',
        '--placeholder',
        'none',
        '--devices',
        '1',
        '--',
        python,
        fixture('intruder.py'),
        LIBRARY,
        '0',
        'plain',
      ],
      bob,
    );
    innocent.push(Number(await output(job, /^ready (\d+)/m)));
    const guilty = [
      await intrude(0, 'forks', bob),
      await intrude(0, 'renamed', bob),
      await intrude(1, 'stays', alice),
      await intrude(2, 'plain', bob),
    ];
    // Anybody may write into a lease's file: whose the GPU is doesn't follow from that.
    const file = join(machine.lockDirectory, `${uuidOf(0)}.lease`);
    const record = JSON.parse(readFileSync(file, 'utf8').trim());
    const forged = JSON.stringify({ ...record, uid: bob.uid, user: 'bob' }).padEnd(4095);
    await machine.run(['sh', '-c', 'printf %s "$1" 1<> "$0"', file, forged], bob);
    const enforcer = enforce();
    await ended(...guilty);
    // Processes that were started on SIGTERM end as well.
    await until(() => machine.processes(0).length === 2);
    expect(machine.processes(0).sort()).toEqual(innocent.slice(0, 2).sort());
    expect(innocent.filter(isAlive)).toEqual(innocent);
    expect(holder.exitCode).toBeNull();
    for (const pid of innocent) expect(enforcer.lines.join('\n')).not.toContain(`(pid ${pid},`);
    const kills = () => enforcer.lines.filter((line) => /^sent SIGKILL to .*\(pid \d+, nobody\)/.test(line));
    await until(() => kills().length > 0); // the process may end before its line is read
    expect(kills()).toHaveLength(1);
  });

  test('a user’s process ends, whichever thread computes, and whatever that user’s number is', async () => {
    machine.configure('enforce: { grace: 1s }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const guilty = [await intrude(0, 'hides', bob), await intrude(0, 'headless', bob)];
    guilty.push(await intrudeAsMany(bob));
    const innocent = await intrudeAsMany(alice);
    const enforcer = enforce();
    await until(() => machine.processes(0).every((pid) => !guilty.includes(pid)));
    const sent = () => enforcer.lines.filter((line) => line.startsWith('sent SIGTERM to '));
    await until(() => sent().length === 3);
    for (const line of sent()) expect(line).toContain(`, uid ${bob.uid})`);
    expect(machine.processes(0)).toEqual([innocent]);
  });

  test('the maker of a lease’s file can’t take it from its holder, and have enforce end the holder', async () => {
    machine.configure('enforce: { grace: 0s, claims: required }\n');
    // Root's claim makes the directory.
    await endHolder(await startHolder(machine, ['--devices', '2']));
    await endHolder(await startHolder(machine, ['--devices', '0'], bob));
    const fileOf = (gpu: number) => join(machine.lockDirectory, `${uuidOf(gpu)}.lease`);
    const own = fileOf(0);
    expect(statSync(own).uid).toBe(bob.uid);
    // Another user's file with a link there stays what it is.
    const letter = join(machine.directory, 'letter');
    writeFileSync(letter, '', { mode: 0o600 });
    chownSync(letter, CAROL, CAROL);
    linkSync(letter, fileOf(1));
    const words = ['run', '--placeholder', 'none', '--devices', '0', '--'];
    const program = [python, fixture('intruder.py'), LIBRARY, '0', 'plain'];
    const job = machine.startCommand([...words, ...program], alice);
    const pid = Number(await output(job, /^ready (\d+)/m));
    const other = await intrude(2, 'plain', bob);
    enforce();
    await ended(other);
    expect((await machine.run(['rm', '-f', own], bob)).stderr).toContain('not permitted');
    expect(statSync(own)).toMatchObject({ uid: 0, mode: 0o100666 });
    expect(statSync(letter).uid).toBe(CAROL);
    await ended(await intrude(2, 'plain', bob));
    expect(isAlive(pid)).toBe(true);
  });

  test('a lease whose file was removed and locked by its maker, before enforce has looked, is its holder’s', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    await endHolder(await startHolder(machine, ['--devices', '2']));
    await endHolder(await startHolder(machine, ['--devices', '0'], bob));
    const program = [python, fixture('intruder.py'), LIBRARY, '0', 'plain'].join(' ');
    const wait = `while [ ! -e ${join(machine.directory, 'go')} ]; do sleep 0.1; done`;
    const run = ['run', '--placeholder', 'none', '--devices', '0', '--', 'sh', '-c'];
    const job = machine.startCommand([...run, `echo started; ${wait}; exec ${program}`], alice);
    await output(job, /^started/m);
    const swap = `import fcntl, os, struct, sys
os.unlink(sys.argv[1])
file = open(sys.argv[1], "a")
for byte in (0, 12345):
    fcntl.fcntl(file, 37, struct.pack("hhqqi4x", 1, 0, byte, 1, 0))
print("locked", flush=True)
sys.stdin.read()`;
    const file = join(machine.lockDirectory, `${uuidOf(0)}.lease`);
    await output(machine.start([python, '-c', swap, file], bob), /^locked/m);
    const enforcer = enforce();
    await until(() => existsSync(join(machine.lockDirectory, '../enforce.json')));
    machine.touch('go');
    const pid = Number(await output(job, /^ready (\d+)/m));
    // Looks go on, and end others.
    await ended(await intrude(0, 'plain', { uid: CAROL }));
    expect(isAlive(pid)).toBe(true);
    expect(enforcer.lines.some((line) => line.includes(`(pid ${pid},`))).toBe(false);
  });

  test('a user who starts a process each moment is found', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const enforcer = enforce([], withTimeouts({ enforceLook: 5_000, enforceKill: 20_000 }));
    const first = await intrude(0, 'plain', bob);
    await ended(first);
    const again = machine.start([python, fixture('again.py'), LIBRARY, '3'], bob);
    await output(again, /^ready/m);
    await looks(enforcer, /^sent SIGKILL to .*uid 65533\)/);
  });

  test('a lock of another kind on a GPU with shares protects nobody', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    const words = ['run', '--placeholder', 'none', '--devices', '0', '--memory', '10GiB', '--'];
    const program = [python, fixture('intruder.py'), LIBRARY, '0', 'plain'];
    const holder = Number(await output(machine.startCommand([...words, ...program], alice), /^ready (\d+)/m));
    const lock = `import fcntl, sys
fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_SH, 1, 0)
print("locked", flush=True)
sys.stdin.read()`;
    const file = join(machine.lockDirectory, `${uuidOf(0)}.lease`);
    await output(machine.start([python, '-c', lock, file], { uid: CAROL }), /^locked/m);
    const pid = await intrude(0, 'plain', bob);
    enforce();
    await ended(pid);
    expect(isAlive(holder)).toBe(true);
  });

  test('it goes on where its state can’t be written and the user can’t be told, and says so', async () => {
    machine.configure('enforce: { grace: 1s }\nnotifyCommand: [/etc/passwd/none]\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const pid = await intrude(0, 'stays', bob);
    mkdirSync(join(machine.lockDirectory, '../enforce.json.new'));
    const enforcer = enforce();
    await ended(pid);
    await looks(enforcer, /^sent SIGKILL/);
    expect(enforcer.lines.filter((line) => /^can't write the state \(EISDIR\)/.test(line))).toHaveLength(1);
    await looks(enforcer, /^notifyCommand of the configuration failed for uid 65533: .*\(ENOTDIR\)/);
  });

  test('a stranger on a GPU that others share ends, and its holders don’t', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    const share = (starting: Starting) => {
      const words = ['run', '--placeholder', 'none', '--devices', '0', '--memory', '10GiB', '--'];
      const program = [python, fixture('intruder.py'), LIBRARY, '0', 'plain'];
      return output(machine.startCommand([...words, ...program], starting), /^ready (\d+)/m);
    };
    const holders = [Number(await share(alice)), Number(await share({ uid: CAROL }))];
    const pid = await intrude(0, 'plain', bob);
    const enforcer = enforce();
    await ended(pid);
    await looks(enforcer, /^sent SIGTERM to .*computes on GPU 0, which is leased by /);
    expect(holders.filter(isAlive)).toEqual(holders);
  });

  test('exceptions are for programs of root, not for what is called like them', async () => {
    const program = realpathSync(python);
    machine.configure(
      `enforce: { grace: 0s, claims: required, except: { programs: [${basename(program)}] } }\n`,
    );
    const pid = await intrude(0, 'plain', bob);
    const copy = join(machine.directory, basename(program));
    copyFileSync(program, copy);
    chownSync(copy, bob.uid, bob.uid);
    const child = machine.start([copy, fixture('intruder.py'), LIBRARY, '1', 'plain'], bob);
    const other = Number(await output(child, /^ready (\d+)/m));
    enforce();
    await ended(other);
    expect(isAlive(pid)).toBe(true);
  });

  test('a user with very many open files doesn’t protect others', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const hog = `import os, resource, time
most = min(20000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for i in range(most - 20):
    os.dup(0)
for i in range(15):
    if os.fork() == 0:
        break
print("open", flush=True)
os.read(0, 1)`;
    await output(machine.start([python, '-c', hog], { uid: CAROL }), /^open/m);
    const pid = await intrude(0, 'plain', bob);
    const enforcer = enforce([], withTimeouts({ enforceLook: 100, enforceSearch: 1_000 }));
    await ended(pid);
    await looks(enforcer, new RegExp(`^python[0-9.]* \\(pid \\d+, uid ${CAROL}\\) has too many open files`));
  });

  test('exceptions of a directory service are left alone, also while it doesn’t answer', async () => {
    machine.configure(
      'enforce: { grace: 0s, claims: required, except: { users: [remote, "100000"], groups: [remotes] } }\n',
    );
    const answer = join(machine.directory, 'getent');
    const answers = (text: string) => writeFileSync(answer, `#!/bin/sh\n${text}\n`, { mode: 0o755 });
    // Not of `except`, whatever numbers its user has in a namespace.
    const mapped = await intrudeAsMany(alice);
    const excepted = await intrude(0, 'plain', bob);
    const unknown = await intrude(1, 'plain', { uid: CAROL });
    const local = await intrude(2, 'plain', alice);
    answers('exit 2');
    const env = { PATH: `${machine.directory}:${process.env.PATH}` };
    const first = enforce([], env);
    await ended(local, mapped);
    await lookAgain(join(machine.lockDirectory, '../enforce.json'));
    expect([excepted, unknown].filter(isAlive)).toEqual([excepted, unknown]);
    first.child.kill();
    answers(`[ $1 = group ] && echo remotes:x:77: || echo remote:x:${bob.uid}:100::/:/bin/sh`);
    writeFileSync(join(machine.directory, 'id'), '#!/bin/sh\necho 65534 77\n', { mode: 0o755 });
    const member = await intrudeAsMany(alice);
    enforce([], env);
    await ended(unknown);
    expect([excepted, member].filter(isAlive)).toEqual([excepted, member]);
  });

  test('a user who was there before a lease that allows it is left alone', async () => {
    machine.configure('enforce: { grace: 0s }\n');
    const pid = await intrude(0, 'plain', bob);
    const enforcer = enforce();
    await until(() => existsSync(join(machine.lockDirectory, '../enforce.json')));
    await startHolder(machine, ['--devices', '0', '--allow-processes', '--max-used-memory', 'any'], alice);
    const other = await intrude(0, 'plain', bob);
    await ended(other);
    expect(isAlive(pid)).toBe(true);
    expect(enforcer.lines.some((line) => line.includes(`(pid ${pid},`))).toBe(false);
  });

  test('after kill -9 it goes on where it was, and ends nothing sooner', async () => {
    machine.configure('enforce: { grace: 3s }\n');
    await startHolder(machine, ['--devices', '0'], alice);
    const pid = await intrude(0, 'plain', bob);
    const state = join(machine.lockDirectory, '../enforce.json');
    const looked = () => lookAgain(state);
    const first = enforce();
    await looks(first, /^warned/);
    const warned = Date.now();
    await looked();
    first.child.kill('SIGKILL');
    const all = [first];
    for (let i = 0; i < 3; i++) {
      const again = enforce();
      await looked();
      again.child.kill('SIGKILL');
      all.push(again);
    }
    const last = enforce();
    await ended(pid);
    expect(Date.now() - warned).toBeGreaterThanOrEqual(2_900);
    const lines = () => [...all, last].flatMap((enforcer) => enforcer.lines);
    await until(() => lines().length > 1);
    expect(lines()).toEqual([expect.stringMatching(/^warned/), expect.stringMatching(/^sent SIGTERM to /)]);
  });

  test('the user is warned on the terminals, and by the command of the configuration', async () => {
    const told = join(machine.stateDirectory(), '../told');
    const script = `{ id -u; echo $GPU_OWNER_EVENT; cat; } > ${told}.new && mv ${told}.new ${told}`;
    machine.configure(`enforce: { grace: 1h }\nnotifyCommand: [sh, -c, '${script}']\n`);
    await startHolder(machine, ['--devices', '0'], alice);
    const window = `import os, pty
m, s = pty.openpty()
os.chown(os.ttyname(s), ${bob.uid}, -1)
print("open", flush=True)
print(os.read(m, 4096).decode(), flush=True)`;
    const terminal = machine.start([python, '-c', window]);
    await output(terminal, /^open/m);
    await intrude(0, 'plain', bob);
    const message = output(terminal, /\*\*\* gpu-owner: .*/);
    enforce();
    expect(await message).toMatch(
      /computes on GPU 0, which is leased by nobody. It will be ended in (1 h|59 min)/,
    );
    await until(() => existsSync(told));
    const [uid, event, json = ''] = readFileSync(told, 'utf8').split('\n');
    expect([uid, event]).toEqual([String(bob.uid), 'warned']);
    expect(JSON.parse(json).text).toContain('computes on GPU 0');
  });

  test(`no process gets a signal because it has the number of one that was guilty, in ${ROUNDS} rounds`, {
    timeout: ROUNDS * 5_000,
  }, async () => {
    machine.configure('enforce: { grace: 30ms, claims: required }\n');
    const words = [python, fixture('reuse.py'), LIBRARY, String(ROUNDS), String(SEED)];
    const { stdout, stderr } = await machine.run(
      [...UNSHARE, ...words, String(bob.uid), String(alice.uid), process.execPath, command],
      { env: withTimeouts({ enforceLook: 20, enforceKill: 40 }) },
    );
    const counts = JSON.parse(stdout || `"${stderr}"`);
    expect(counts).toMatchObject({ hurt: 0, left: 0, ended: ROUNDS / 5 });
    expect(counts.reused).toBeGreaterThan(ROUNDS / 2);
    expect(counts.warned).toBeGreaterThan(ROUNDS / 5);
  });
});
