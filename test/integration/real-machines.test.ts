// Claims on the machines that people have: a desktop, a laptop with WSL, a container, a GPU in an exclusive compute mode, a
// server with MPS.
import { type ChildProcess, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { canMount, finished, Machine, output, processState, until } from '../support/machine.ts';

const tool = join(binaries(), 'gpu-owner-simulator');

let machine: Machine;
afterEach(() => machine.close());

/** Starts a program without a claim on a GPU. */
async function occupy(gpu: number, ...options: string[]): Promise<{ child: ChildProcess; pid: number }> {
  const child = machine.start([tool, 'occupy', String(gpu), ...options]);
  return { child, pid: Number(await output(child, /ready (\d+)/)) };
}

async function end(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL');
  await finished(child, 'exit');
}

function run(...words: string[]) {
  return machine.runCommand(['run', '--no-wait', ...words]);
}

/** A command that makes a CUDA context on the first GPU that it was given, says so, and goes on until its input ends. */
const COMPUTES = ['--', tool, 'occupy', '0', '--memory', '1GiB', '--name', 'train'];
/** On machines of one GPU, where the tool's own idea of a GPU is right. */
async function runsThere(...options: string[]): Promise<string> {
  const child = machine.startCommand(['run', '--no-wait', ...options, ...COMPUTES]);
  child.stdin?.end();
  const { code, stdout, stderr } = await finished(child);
  expect(stderr).toBe('');
  expect(code).toBe(0);
  return stdout;
}

const SHOW_OWNED = 'const owner = new GPUOwner(); console.log(owner.devices[0].index); owner.release();';

describe('two GPUs, one of which drives the display', () => {
  test('the GPU without a display is preferred; where that is used, the desktop is no obstacle', async () => {
    machine = new Machine('rtx4090x2-display');
    const index = ['find', '--visible-devices', 'index'];
    expect(await machine.runCommand(index)).toMatchObject({ code: 0, stdout: '1\n' });
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '1\n', stderr: '' });
    await occupy(1, '--name', 'python');
    await occupy(0, '--type=graphics', '--memory', '900MiB', '--name', 'gnome-shell');
    expect(await machine.runCommand(index)).toMatchObject({ code: 0, stdout: '0\n' });
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
  });
});

describe('a workstation with one GPU', () => {
  test('run and GPUOwner get it beside the desktop', async () => {
    machine = new Machine('workstation');
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
  });
});

describe('WSL 2', () => {
  test('a claim needs no options beside a Windows desktop', async () => {
    machine = new Machine('wsl');
    expect((await machine.status())[0].memory.usedBytes).toBeGreaterThan(1024 ** 3);
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
  });

  test('much memory in use is an obstacle, and the option that the message names helps', async () => {
    machine = new Machine('wsl');
    await occupy(0, '--memory', '5GiB', '--name', 'game');
    const { code, stderr } = await run('--', 'true');
    expect(code).toBe(75);
    expect(stderr).toContain(
      'GPU 0: busy: 6.5 GiB in use, more than the 4 GiB that are left to Windows and its programs by default: ',
    );
    const [, option = ''] = /: (--max-used-memory \S+) would accept it/.exec(stderr) ?? [];
    expect(await run(...option.split(' '), '--', 'true')).toMatchObject({ code: 0, stderr: '' });
    expect(await run('--max-used-memory', 'any', '--', 'true')).toMatchObject({ code: 0, stderr: '' });
    const library = 'console.log((await gpuOwner.findFreeGPUs()).length, ';
    expect(
      await machine.runScript(`${library}(await gpuOwner.findFreeGPUs({ maxUsedMemory: '7GiB' })).length)`),
    ).toMatchObject({ stdout: '0 1\n' });
  });
});

test('the message says what is wrong with a Linux driver in WSL 2', async () => {
  machine = new Machine('wsl');
  machine.set('error=init:9');
  const { code, stderr } = await run('--', 'true');
  expect(code).toBe(69);
  expect(stderr).toContain(
    'the driver belongs to Windows: a Linux driver that was installed in here conflicts with it',
  );
  expect(stderr).not.toContain('modprobe');
});

describe('in a container', () => {
  test('a GPU that somebody outside uses shows by its memory only, which is enough', async () => {
    machine = new Machine(2);
    machine.set('gpu=0', 'hidden-processes=on');
    await occupy(0, '--memory', '3GiB');
    const [gpu] = await machine.status();
    expect(gpu.state).toBe('busy');
    expect(gpu.reason).toBe('3.4 GiB in use, but no process is visible: --max-used-memory would accept it');
    expect(await run('-n', '2', '--', 'true')).toMatchObject({ code: 75 });
  });

  test('claims work where the driver hides all processes, the claim’s own too', async () => {
    machine = new Machine(1);
    machine.set('gpu=0', 'hidden-processes=on');
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
  });

  test('claims work where the driver gives processes other numbers', async () => {
    machine = new Machine(1);
    machine.set('pid-offset=1000000');
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
    const { pid } = await occupy(0, '--memory', '1GiB', '--name', 'python');
    expect((await machine.status())[0].reason).toBe(
      `pid ${pid + 1_000_000} uses 1.4 GiB (it isn't visible here: in another container, or it has just ended)`,
    );
  });

  test('a process that comes in between is noticed, though our own placeholder has an unknown PID', async () => {
    machine = new Machine(2);
    machine.set('pid-offset=1000000');
    const claimant = machine.startCommand(['run', '--', 'printenv', 'CUDA_VISIBLE_DEVICES'], {
      env: { GPU_OWNER_STOP_AT: 'placeholder' },
    });
    const ended = finished(claimant);
    await until(() => processState(claimant.pid as number) === 'T');
    const { child } = await occupy(0);
    // The claimant stops again with its second claim, if it makes one.
    claimant.kill('SIGCONT');
    await until(() => machine.processes(1).length === 1);
    await until(() => processState(claimant.pid as number) === 'T');
    claimant.kill('SIGCONT');
    expect(await ended).toMatchObject({ code: 0, stdout: 'GPU-00000000-0000-4000-8000-000000000001\n' });
    await end(child);
  });
});

describe('an exclusive compute mode', () => {
  const mode = 'exclusive-process';
  test('run leaves the placeholder out, so that the command gets the GPU', async () => {
    machine = new Machine(1);
    machine.set('gpu=0', `compute-mode=${mode}`);
    expect(await runsThere('--placeholder', 'keep')).toMatch(/^ready \d+\n$/);
  });

  test('a GPU that is used in it is busy, whatever a claim accepts', async () => {
    machine = new Machine(1);
    machine.set('gpu=0', `compute-mode=${mode}`);
    await occupy(0, '--name', 'python');
    const { code, stderr } = await run('--allow-processes', '--', 'true');
    expect(code).toBe(75);
    expect(stderr).toMatch(
      new RegExp(
        `GPU 0: busy: python \\(pid .*\\) uses 416 MiB \\(its compute mode '${mode}' admits one process only\\)`,
      ),
    );
  });
});

test('a GPU in mode prohibited is not claimed, and the reason says what an administrator can do', async () => {
  machine = new Machine(2);
  machine.set('gpu=0', 'compute-mode=prohibited');
  expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '1\n' });
  const { code, stderr } = await run('-n', '2', '--', 'true');
  expect(code).toBe(75);
  expect(stderr).toContain('nvidia-smi --compute-mode=DEFAULT');
});

describe('MPS', () => {
  test('an idle server doesn’t make a GPU busy, its clients do', async () => {
    machine = new Machine(1);
    await occupy(0, '--type', 'mps-server');
    expect(await machine.states()).toEqual(['free']);
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
    const client = await occupy(0, '--memory', '1GiB', '--name', 'solver');
    const [gpu] = await machine.status();
    expect(gpu.reason).toMatch(new RegExp(`^solver \\(pid ${client.pid}, .*\\) uses 1.4 GiB$`));
    await end(client.child);
    expect(await machine.states()).toEqual(['free']);
  });

  test('in compute mode exclusive-process, which MPS is used with, the GPU can be claimed and shared', async () => {
    machine = new Machine(1);
    machine.set('gpu=0', 'compute-mode=exclusive-process');
    await occupy(0, '--type', 'mps-server');
    expect(await runsThere()).toMatch(/^ready \d+\n$/);
    expect(await machine.runScript(SHOW_OWNED)).toMatchObject({ code: 0, stdout: '0\n', stderr: '' });
    await occupy(0, '--memory', '1GiB', '--name', 'solver');
    expect(await run('--', 'true')).toMatchObject({ code: 75 });
    expect(await runsThere('--allow-processes')).toMatch(/^ready \d+\n$/);
  });
});

describe('a Jetson, whose driver tells next to nothing', () => {
  test('is claimed with the options that the message names', async () => {
    machine = new Machine('jetson');
    const { code, stderr } = await run('--', 'true');
    expect(code).toBe(75);
    expect(stderr).toContain(
      "--max-used-memory 'any' together with --allow-processes would judge by leases alone",
    );
    const options = ['--max-used-memory', 'any', '--allow-processes'];
    expect(await runsThere(...options)).toMatch(/^ready \d+\n$/);
    // CUDA reads no UUID of a Jetson.
    const shown = await run(...options, '--', 'printenv', 'CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER');
    expect(shown).toMatchObject({ code: 0, stdout: '0\nPCI_BUS_ID\n' });
    const holder = machine.startCommand(['hold', ...options]);
    await output(holder, /visibleDevices/);
    expect((await run(...options, '--', 'true')).stderr).toMatch(/GPU 0: leased by /);
    holder.stdin?.end();
  });
});

test('a share of memory that the driver doesn’t tell ends a job and a claim in Node.js at once', async () => {
  machine = new Machine('workstation');
  machine.set('gpu=0', 'unsupported=memory');
  const reason = /the driver doesn't tell how much memory it has: leave out (--)?memory/;
  const { stdout } = await machine.runCommand(['submit', '--memory', '1GiB', '--', 'true']);
  expect((await machine.runCommand(['wait', stdout.trim()])).code).toBe(75);
  expect((await machine.runCommand(['jobs', stdout.trim()])).stdout).toMatch(reason);
  const script = await machine.runScript(
    "await GPUOwner.acquire({ memory: '1GiB' }).catch(({ code, message }) => console.log(code, message));",
  );
  expect(script.stdout).toMatch(/^ERR_GPU_UNAVAILABLE waiting would not help/);
  expect(script.stdout).toMatch(reason);
});

test('a claim waits for GPUs that start one after the other, a second each, and names the reason', async () => {
  machine = new Machine(3);
  machine.set('quirks=serial');
  machine.set('latency=handle:1000000');
  const { code, stdout, stderr } = await run('--no-wait', '-n', '3', '--', 'echo', 'it ran');
  expect({ code, stdout }).toEqual({ code: 0, stdout: 'it ran\n' });
  expect(stderr).toMatch(/warning: some GPUs don't answer yet: they may be starting up.*`nvidia-smi -pm 1`/);
});

test.skipIf(!canMount())('a package on a file system that is mounted noexec says so', async () => {
  machine = new Machine(1);
  const build = join(machine.directory, 'build');
  mkdirSync(build);
  spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64m,noexec', 'none', build]);
  try {
    cpSync(join(binaries(), 'gpu_owner.node'), join(build, 'gpu_owner.node'));
    const { code, stderr } = await machine.runCommand(['status'], { env: { GPU_OWNER_BUILD: build } });
    expect(stderr).toMatch(
      /can't be loaded: .*Its file system is probably mounted noexec.*mount it with exec/s,
    );
    expect(code).toBe(69);
  } finally {
    spawnSync('umount', [build]);
  }
});

test('a GPU whose memory is the system’s is free until a process computes on it, as on a DGX Spark', async () => {
  machine = new Machine('workstation');
  machine.set('gpu=0', 'unsupported=memory');
  expect(await runsThere()).toMatch(/^ready \d+\n$/);
  await occupy(0, '--name', 'trainer');
  expect((await run('--no-wait', '--', 'true')).stderr).toMatch(/GPU 0: busy: trainer \(pid \d+, \w+\)/);
});

test('a GPU whose memory or MIG mode can’t be read, as the driver failed, is not claimed', async () => {
  machine = new Machine(3);
  machine.set('gpu=0', 'error=memory:2');
  machine.set('gpu=1', 'error=mig:6');
  machine.set('gpu=2', 'error=memory:13,mig:3');
  const { code, stderr } = await run('--no-wait', '-n', '2', '--', 'true');
  expect(code).toBe(75);
  expect(stderr).toMatch(/GPU 0: .*\(NVML code 2\)\n\s+GPU 1: .*\(NVML code 6\)\n\s+GPU 2: free/);
});
