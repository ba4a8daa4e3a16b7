import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { canBeNobody, NOBODY, Simulated } from '../support/simulated.ts';

let machine: Simulated;
beforeEach(() => {
  machine = new Simulated(2);
});
afterEach(() => machine[Symbol.dispose]());

const mode = (path: string) => (statSync(path).mode & 0o7777).toString(8);

/** Returns what both libraries and the tool make of the state: none may crash, each has to say why. */
async function refused(
  words: string | RegExp,
  environment: Record<string, string | undefined> = {},
): Promise<void> {
  const session = machine.session({ environment });
  expect(await session.do('nvml.init()')).toBe(9);
  expect(await session.do('cuda.init()')).toBe(999);
  expect(await session.do('cuda.count()')).toBe(-3);
  session.child.stdin?.end();
  await session.ended();
  const lines = session.stderr.trim().split('\n');
  expect(lines.length).toBe(2);
  for (const line of lines) {
    expect(line).toMatch(/^gpu-owner simulator: /);
    expect(line).toMatch(words);
  }
  const { status, stderr } = machine.tool(['show'], { environment });
  expect(stderr).toMatch(words);
  expect([64, 74]).toContain(status);
}

test('modes do not depend on the umask', () => {
  expect(machine.tool(['show'], { umask: '077' }).status).toBe(0);
  expect(mode(machine.directory)).toBe('1777');
  expect(mode(machine.home)).toBe('1777');
  expect(mode(join(machine.home, 'state'))).toBe('666');
  expect(mode(join(machine.home, 'slots'))).toBe('666');
});

test('64 processes that find nothing make one machine', async () => {
  const session = machine.session();
  await session.do('[nvml.call, cuda.init]');
  for (let round = 0; round < (process.env.GPU_OWNER_SOAK ? 5 : 2); round++) {
    expect(await session.do('together(64)')).toEqual(Array(64).fill(0));
    expect(readdirSync(machine.directory)).toEqual(['2']);
    expect(readdirSync(machine.home).sort()).toEqual(['slots', 'state']);
    rmSync(machine.directory, { recursive: true });
  }
});

describe('the name of a machine', () => {
  test.each(['65', '\u001b[31m'])('is refused if it is %j', async (name) => {
    await refused(/h200x8, h200x16, a100x4-mig/, { GPU_OWNER_SIMULATE: name });
    expect(existsSync(machine.directory)).toBe(false);
  });

  test.each(['../nosuch/machine'])(
    'is the path of a file if it is %j, and refused where there is none',
    async (name) => {
      await refused(/cannot be read: No such file or directory; name a file that describes a machine/, {
        GPU_OWNER_SIMULATE: name,
      });
      expect(existsSync(machine.directory)).toBe(false);
    },
  );

  test('is asked for if it is unset', async () => {
    await refused(/GPU_OWNER_SIMULATE is not set/, { GPU_OWNER_SIMULATE: undefined });
  });
});

describe('the simulator refuses', () => {
  const state = () => join(machine.home, 'state');
  beforeEach(() => {
    machine.show();
  });

  /** Changes the bytes of the state. */
  const change = (edit: (bytes: Buffer) => Buffer | number) => () => {
    const bytes = readFileSync(state());
    const changed = edit(bytes);
    writeFileSync(state(), typeof changed === 'number' ? bytes : changed);
  };

  test.each<[what: string, spoil: () => void, words: RegExp]>([
    ['is cut short', () => truncateSync(state(), 5000), /state is damaged \(5000 bytes instead of/],
    ['is something else', change((bytes) => bytes.fill('x')), /is not the state of a simulated machine/],
    ['is of another version', change((bytes) => bytes.writeUInt32LE(99, 8)), /is of version 99/],
    ['has another number of GPUs', change((bytes) => bytes.writeUInt32LE(4e9, 12)), /state is damaged/],
  ])('a state that %s', async (_, spoil, words) => {
    spoil();
    await refused(words);
  });

  test('a state of another machine', async () => {
    using other = new Simulated(3);
    other.show();
    writeFileSync(state(), readFileSync(join(other.home, 'state')));
    await refused(/is that of another machine/);
  });

  test.each(['slots'])('a file %s that is a symbolic link', async (name) => {
    const path = join(machine.home, name);
    const target = join(dirname(machine.directory), 'target');
    linkSync(path, target);
    rmSync(path);
    symlinkSync(target, path);
    await refused(/is a symbolic link/);
  });

  test('a replaced file of slots', async () => {
    const slots = join(machine.home, 'slots');
    linkSync(slots, join(machine.home, 'kept'));
    rmSync(slots);
    writeFileSync(slots, '');
    await refused(/slots was replaced/);
  });

  test('a machine’s directory that is a symbolic link', async () => {
    const target = join(dirname(machine.directory), 'target');
    mkdirSync(target);
    rmSync(machine.home, { recursive: true });
    symlinkSync(target, machine.home);
    await refused(/is not a directory of its own/);
  });
});

test('a program that closes all descriptors gets errors, and others no wrong idea of it', async () => {
  const careless = machine.session();
  const watcher = machine.session();
  await watcher.do('nvml.init() or cuda.use(0)');
  await careless.do('nvml.init() or cuda.init()');
  await careless.do('os.closerange(3, 256)');
  expect(await careless.do('[cuda.retain(0)[0], nvml.pids(0)]')).toEqual([304, [watcher.pid]]);
  expect(await watcher.do('nvml.pids(0)')).toEqual([watcher.pid]);
});

test('the default place is in TMPDIR, one per user', () => {
  const temporary = dirname(machine.directory);
  const environment = { GPU_OWNER_SIMULATE_DIR: undefined, TMPDIR: temporary };
  expect(machine.tool(['show'], { environment }).status).toBe(0);
  expect(existsSync(join(temporary, `gpu-owner-simulated-${process.getuid?.()}`, '2', 'state'))).toBe(true);
});

test('scribbling all over the state crashes nobody', async () => {
  machine[Symbol.dispose]();
  machine = new Simulated('a100x4-mig');
  const session = machine.session();
  const victims = [machine.session(), machine.session()];
  await session.do('nvml.init()');
  for (const victim of victims) await victim.do('cuda.use(0)');
  // Everything that isn't checked when it is opened, while everybody is attached.
  const state = join(machine.home, 'state');
  // Random settings there would take effect.
  const calm = ['hang=off', 'latency=off', 'error=off', 'gpu=all', 'hang=off', 'latency=off', 'error=off'];
  const health = ['hidden-processes=off', 'lost=off', 'reset-required=off', 'no-permission=off'];
  for (let seed = 0; seed < (process.env.GPU_OWNER_SOAK ? 4 : 2); seed++) {
    await session.do(`scribble(${JSON.stringify(state)}, ${seed})`);
    machine.set('teardown=0', ...calm, ...health);
    for (const who of [session, ...victims]) {
      await who.do('nvml.init()');
      await who.do(
        '[[nvml.process_count(i), nvml.processes(i), nvml.memory(i), nvml.memory_v2(i)] for i in range(4)]',
      );
    }
    for (const victim of victims)
      await victim.do('[cuda.info(), cuda.allocate(2**20), cuda.release(0), cuda.retain(0), cuda.create(0)]');
    expect(machine.tool(['show']).status).toBe(0);
    expect(machine.tool(['show', '--json']).status).toBe(0);
  }
});

describe.skipIf(!canBeNobody())('another user’s state', () => {
  test('a state that one may not write is refused', async () => {
    machine.show();
    chmodSync(join(machine.home, 'state'), 0o600);
    const { status, stderr } = machine.tool(['show'], { uid: NOBODY });
    expect(status).toBe(74);
    expect(stderr).toMatch(/cannot open .*state for writing: Permission denied; make it so \(chmod 666\)/);
  });

  test('a state is refused where one may not make a directory', () => {
    const { status, stderr } = machine.tool(['show'], { uid: NOBODY });
    expect(status).toBe(74);
    expect(stderr).toMatch(/cannot create .*Permission denied/);
  });

  test('switches of one user are seen by the other', () => {
    machine.show();
    expect(machine.tool(['set', 'gpu=0', 'lost=on'], { uid: NOBODY }).status).toBe(0);
    expect(machine.show().gpus[0].faults.lost).toBe(true);
  });
});
