import { spawn, spawnSync } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, root } from '../support/machine.ts';
import { CONTEXT, GiB, Simulated, tool, until } from '../support/simulated.ts';
import { pause } from '../support/time.ts';

let machine: Simulated;
beforeEach(() => {
  machine = new Simulated(4);
});
afterEach(() => machine[Symbol.dispose]());

test('the list of machines needs no machine', () => {
  const environment = { GPU_OWNER_SIMULATE: undefined };
  expect(machine.tool(['machines'], { environment }).stdout).toMatch(/^h200x8 +eight H200/);
});

describe('the help of `gpu-owner simulate`', () => {
  const help = spawnSync(process.execPath, [command, 'simulate', 'set', '--help'], {
    encoding: 'utf8',
  }).stdout;
  const keys = [...help.matchAll(/^ {2}([a-z-]+)=/gm)].map(([, key]) => key as string);

  test.each(keys)('names the key %s, which the simulator knows', (key) => {
    const { stderr } = machine.tool(['set', 'gpu=0', `${key}=nonsense`]);
    expect(stderr).toMatch(new RegExp(`simulate: ${key}( is the whole machine's|=nonsense: )`));
  });

  test('names all keys of the simulator', () => {
    const source = readFileSync(join(root, 'simulator/tool_set.cc'), 'utf8');
    const [body = ''] = source.match(/int set_one\([\s\S]*?\n}/) ?? [];
    const known = [...body.matchAll(/key == "([a-z-]+)"|(?<=[{ ])"([a-z-]+)"(?=[,}])/g)].map(
      (found) => found[1] ?? found[2],
    );
    expect(new Set(keys)).toEqual(new Set(known));
  });

  test('names all calls of the simulator', () => {
    const calls = /^Calls: ([\s\S]*?)\n\n/m.exec(help)?.[1]?.replaceAll('\n', ' ');
    expect(machine.tool(['set', 'hang=frob']).stderr).toContain(`no call frob; there are ${calls} (`);
  });
});

test('the machine may be named on the command line, before and after the command', () => {
  for (const args of [
    ['--machine', 'mixed', 'show', '--json'],
    ['show', '--machine=mixed', '--json'],
    ['show', '--json', '--machine', 'mixed'],
  ])
    expect(JSON.parse(machine.tool(args).stdout).machine).toBe('mixed');
});

describe('a wrong command line', () => {
  test.each([
    [[], /a command is missing/],
    [['frobnicate'], /unknown command frobnicate/],
    [['--machine'], /--machine needs a value/],
    [['--frob', 'show'], /unknown option --frob/],
    [['show', 'gpu=0'], /unexpected argument gpu=0/],
    [['reset', 'x'], /reset takes no arguments/],
    [['set'], /nothing to set/],
    [['set', 'gpu=0'], /nothing to set/],
    [['set', 'lost=on'], /lost is a GPU's: say which/],
    [['set', 'gpu=4', 'lost=on'], /gpu=4: expected indices from 0 to 3/],
    [['set', 'gpu=0,', 'lost=on'], /gpu=0,: expected/],
    [['set', 'gpu=0', 'teardown=5'], /teardown is the whole machine's/],
    [['set', 'gpu=0', 'count=on'], /count is the whole machine's/],
    [['set', 'count=yes'], /count=yes: expected on or off/],
    [['set', 'teardown=-1'], /teardown=-1: expected milliseconds/],
    [['set', 'gpu=0', 'lost=on', 'lost=maybe'], /lost=maybe: expected on or off/],
    [['set', 'gpu=0', 'lost=on', 'frob=1'], /unknown key frob/],
    [['set', 'gpu=0', 'lost=on', 'hang'], /hang: expected KEY=VALUE/],
    [['set', 'gpu=0', 'lost=on', 'hang=frob'], /no call frob; there are init, /],
    [['set', 'gpu=0', 'lost=on', 'latency=power'], /expected CALL:MICROSECONDS/],
    [['set', 'gpu=0', 'lost=on', 'latency=power:1.5'], /expected CALL:MICROSECONDS/],
    [['set', 'gpu=0', 'lost=on', 'error=power'], /expected CALL:CODE/],
    [['set', 'gpu=0', 'lost=on', 'compute-mode=x'], /expected default, exclusive-process/],
    [['set', 'gpu=0', 'lost=on', 'hidden-memory=2 apples'], /expected a size/],
    [['set', 'gpu=0', 'lost=on', 'utilization=101'], /expected percent/],
    [['set', 'gpu=0', 'lost=on', 'power=NaN'], /expected watts/],
    [['--machine', 'workstation', 'set', 'gpu=0', 'mig=on'], /has no MIG/],
    [['occupy'], /which GPU\? An index from 0 to 3/],
    [['occupy', '9'], /no GPU 9/],
    [['occupy', '0', '1'], /unexpected argument 1/],
    [['occupy', '0', '--memory'], /--memory needs a value/],
    [['occupy', '0', '--memory', 'much'], /expected a size/],
    [['occupy', '0', '--memory', '20'], /expected a size, as in 2GiB/],
  ])('exits with 64 and a reason, and changes nothing: %j', (args, words) => {
    const { status, stdout, stderr } = machine.tool(args);
    expect(stderr).toMatch(words);
    expect(stdout).toBe('');
    expect(status).toBe(64);
    expect(machine.show().gpus.some((gpu: { faults: { lost: boolean } }) => gpu.faults.lost)).toBe(false);
  });
});

test('show shows what set and reset have switched', () => {
  machine.set('teardown=250', 'latency=all:10', 'gpu=0,2', 'lost=on', 'hang=power,memory', 'error=pci:21');
  machine.set(
    'gpu=GPU-00000000-0000-4000-8000-000000000001',
    'hidden-memory=1.5GiB',
    'compute-mode=exclusive-process',
  );
  const shown = machine.show();
  expect(shown.teardownMs).toBe(250);
  expect(shown.faults.latencyMicroseconds).toMatchObject({ init: 10, 'cuda-free': 10 });
  expect(shown.gpus[2].faults).toMatchObject({ lost: true, hang: ['memory', 'power'], errors: { pci: 21 } });
  expect(shown.gpus[1]).toMatchObject({
    computeMode: 'exclusive-process',
    faults: { lost: false, hiddenMemoryBytes: 1.5 * GiB },
  });
  const text = machine.tool(['show']).stdout;
  expect(text).toContain('teardown=250');
  expect(text).toContain('latency=all:10');
  expect(text).toContain('lost hang=memory,power error=pci:21');
  expect(machine.tool(['reset']).status).toBe(0);
  using fresh = new Simulated(4);
  expect({ ...machine.show(), directory: null }).toEqual({ ...fresh.show(), directory: null });
});

test('show --json counts how often each call was made, by all processes together', async () => {
  expect(machine.show().calls).toBeNull();
  const sessions = [machine.session(), machine.session()];
  for (const session of sessions) await session.do('nvml.init()');
  machine.set('count=on');
  for (const session of sessions) await session.do('[nvml.power(i)[0] for i in (0, 1, 2)]');
  await sessions[0]?.do('cuda.use(1)');
  expect(machine.show().calls).toMatchObject({ init: 0, power: 6, 'cuda-init': 1, 'cuda-context': 1 });
  machine.set('count=on');
  expect(machine.show().calls).toMatchObject({ power: 0 });
  expect(machine.tool(['show']).stdout).toContain('count=on');
  machine.tool(['reset']);
  expect(machine.show().calls).toBeNull();
});

test('reset leaves processes alone', async () => {
  const user = machine.session();
  await user.do('cuda.use(1)');
  machine.tool(['reset']);
  expect(machine.witness(1)).toEqual([user.pid]);
});

test('occupy is a foreign process that others see, until its standard input closes', async () => {
  const watcher = machine.session();
  await watcher.do('nvml.init()');
  const child = await machine.occupy('2', '--memory', '2GiB', '--name', 'train');
  expect(await watcher.do('nvml.processes(2)')).toMatchObject([
    { pid: child.pid, memory: CONTEXT + 2 * GiB },
  ]);
  expect(readFileSync(`/proc/${child.pid}/comm`, 'utf8')).toBe('train\n');
  expect(readFileSync(`/proc/${child.pid}/cmdline`, 'utf8')).toBe('train\0');
  child.stdin?.end();
  await new Promise((resolve) => child.once('exit', resolve));
  expect(await watcher.do('nvml.pids(2)')).toEqual([]);
  expect(child.exitCode).toBe(0);
});

test('occupy changes its memory as lines of standard input say, and ends where there is no room', async () => {
  const child = await machine.occupy('2', '--memory', '2GiB');
  let said = '';
  child.stdout?.on('data', (text) => {
    said += text;
  });
  for (const size of [40, 8, 0, 79]) {
    child.stdin?.write(`memory ${size}GiB\n`);
    await until(() => said.endsWith(`memory ${size * GiB}\n`));
    expect(machine.show().gpus[2].processes).toMatchObject([{ usedBytes: CONTEXT + size * GiB }]);
  }
  child.stdin?.write('frobnicate\nmemory 81GiB\n');
  await new Promise((resolve) => child.once('exit', resolve));
  expect(child.exitCode).toBe(1);
});

test('set --check changes nothing', () => {
  expect(machine.tool(['set', '--check', 'gpu=1', 'lost=on']).status).toBe(0);
  expect(machine.tool(['set', '--check', 'gpu=1', 'lost=maybe']).stderr).toMatch(
    /lost=maybe: expected on or off/,
  );
  expect(machine.show().gpus[1].faults.lost).toBe(false);
});

test('occupy can be a graphics process, and takes a UUID, an instance, or NVML’s number of a GPU', async () => {
  const watcher = machine.session();
  await watcher.do('nvml.init()');
  const graphics = await machine.occupy('GPU-00000000-0000-4000-8000-000000000003', '--type=graphics');
  expect(await watcher.do('[nvml.pids(3), nvml.pids(3, "Graphics")]')).toEqual([[], [graphics.pid]]);
  graphics.kill('SIGKILL');

  using mixed = new Simulated('mixed');
  const first = await mixed.occupy('0');
  expect(mixed.witness(0)).toEqual([first.pid]);
  first.kill();

  using mig = new Simulated('a100x4-mig');
  const { uuid } = mig.show().gpus[1].migInstances[4];
  const instance = await mig.occupy(uuid);
  expect(mig.show().gpus[1].processes).toMatchObject([{ pid: instance.pid, migUuid: uuid }]);
  const other = await mig.occupy('0:3');
  expect(mig.show().gpus[0].processes).toMatchObject([
    { pid: other.pid, migUuid: mig.show().gpus[0].migInstances[2].uuid },
  ]);
  instance.kill();
});

test('occupy without a standard input goes on until it is killed', async () => {
  const child = spawn(tool, ['occupy', '0'], {
    env: machine.environment,
    stdio: [openSync('/dev/null', 'r'), 'pipe', 'inherit'],
  });
  for await (const line of createInterface(child.stdout as NodeJS.ReadableStream)) {
    expect(line).toBe(`ready ${child.pid}`);
    break;
  }
  await pause(50);
  expect(machine.witness(0)).toEqual([child.pid]);
  child.kill();
  await until(() => machine.witness(0).length === 0);
});

test('occupy says why it can not', () => {
  machine.set('gpu=0', 'compute-mode=prohibited', 'gpu=1', 'lost=on');
  expect(machine.tool(['occupy', '0']).stderr).toMatch(/making a context failed: unknown error \(999\)/);
  expect(machine.tool(['occupy', '1']).stderr).toMatch(
    /cuInit failed: no CUDA-capable device is detected \(100\)/,
  );
  expect(machine.tool(['occupy', '2', '--memory', '90GiB']).stderr).toMatch(
    /allocating memory failed: out of memory \(2\)/,
  );
});
