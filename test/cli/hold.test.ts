import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  command,
  finished,
  launcher,
  Machine,
  output,
  processState,
  python,
  root,
  until,
} from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

const free = (count = 4) => Array(count).fill('free');

describe('hold', () => {
  test('claims nothing in an environment that is thrown away, and says so with a code of its own', async () => {
    const place = join(machine.directory, 'archive-v0/x/lib/gpu-owner');
    cpSync(join(root, 'dist'), join(place, 'dist'), { recursive: true });
    cpSync(join(root, 'package.json'), join(place, 'package.json'));
    const thrownAway = join(place, 'dist/gpu-owner.cjs');
    const env = { GPU_OWNER_ERRORS: 'json' };
    const { code, stdout, stderr } = await machine.run([process.execPath, thrownAway, 'hold'], { env });
    expect({ code, stdout }).toEqual({ code: 69, stdout: '' });
    expect(JSON.parse(stderr).error).toMatchObject({ code: 'ERR_INSTALLATION' });
  });

  test('prints one line of JSON and holds until its input is closed, whatever is written there before', async () => {
    const holder = machine.start([launcher, 'hold', '-n', '2']);
    const outcome = finished(holder);
    const line = await output(holder, /.*\n/);
    const gpus = await machine.status();
    expect(JSON.parse(line)).toEqual({
      devices: gpus.slice(0, 2).map(({ index, uuid, name }) => ({ index, uuid, name })),
      visibleDevices: `${gpus[0].uuid},${gpus[1].uuid}`,
    });
    expect(gpus.map(({ state }) => state)).toEqual(['leased', 'leased', 'free', 'free']);
    holder.stdin?.write('anything\n'.repeat(100_000));
    await machine.status();
    expect((await machine.states()).slice(0, 2)).toEqual(['leased', 'leased']);
    holder.stdin?.end();
    expect(await outcome).toEqual({ code: 0, signal: null, stdout: line, stderr: '' });
    await expect.poll(() => machine.states()).toEqual(free());
    expect(machine.processes(0)).toEqual([]);
  });

  test('with GPU_OWNER_ERRORS=json, hold tells a failure as a line of JSON, with its code', async () => {
    await machine.run([launcher, 'simulate', 'set', 'error=init:9']);
    const env = { GPU_OWNER_ERRORS: 'json' };
    for (const args of [['hold'], ['status'], ['find', '--json']]) {
      const { code, stdout, stderr } = await machine.run([launcher, ...args], { env });
      expect([code, stdout, JSON.parse(stderr).error.code]).toEqual([69, '', 'ERR_DRIVER']);
    }
    const { stderr } = await machine.run([launcher, 'hold', '--bananas'], { env });
    expect(JSON.parse(stderr).error).toEqual({
      code: 'ERR_INVALID_ARGUMENT',
      message: expect.stringContaining('--bananas'),
      // A caller of another version tells a version that is too old by it.
      unknown: 'there is no option --bananas',
    });
  });

  test('SIGTERM ends hold', async () => {
    const holder = machine.startCommand(['hold']);
    const outcome = finished(holder);
    await output(holder, /visibleDevices/);
    holder.kill('SIGTERM');
    // By the signal itself where it came in the moment between the line and the change into a keeper.
    const result = await outcome;
    expect(result).toMatchObject({
      stderr: '',
      ...(result.code === null ? { signal: 'SIGTERM' } : { code: 143 }),
    });
    await expect.poll(() => machine.states()).toEqual(free());
  });

  test('kill -9 of hold, or of the program that holds its input open, ends the lease', async () => {
    const holder = machine.startCommand(['hold']);
    await output(holder, /visibleDevices/);
    holder.kill('SIGKILL');
    await finished(holder);
    await until(async () => (await machine.states())[0] === 'free');

    const parent = machine.start([
      python,
      '-c',
      `import subprocess, sys, time
hold = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(hold.stdout.readline().decode(), hold.pid, flush=True)
time.sleep(60)`,
      process.execPath,
      command,
      'hold',
    ]);
    await output(parent, /visibleDevices/);
    expect((await machine.states())[0]).toBe('leased');
    parent.kill('SIGKILL');
    await until(async () => (await machine.states())[0] === 'free');
    await until(() => machine.processes(0).length === 0);
  });

  test('with input that is closed from the start, hold claims, prints and ends', async () => {
    const { code, stdout } = await machine.runCommand(['hold']);
    expect(code).toBe(0);
    expect(JSON.parse(stdout).devices).toHaveLength(1);
    await expect.poll(() => machine.states()).toEqual(free());
  });

  test('hold exits with 75 if no GPU is free, and with --wait waits for one', async () => {
    const first = machine.startCommand(['hold', '-n', '4']);
    await output(first, /visibleDevices/);
    const { code, stdout, stderr } = await machine.runCommand(['hold']);
    expect({ code, stdout }).toEqual({ code: 75, stdout: '' });
    expect(stderr.match(/GPU \d: leased by/g)).toHaveLength(4);
    const impatient = machine.startCommand(['hold', '--wait=100ms']);
    expect((await finished(impatient)).stderr).toMatch(/timed out after 100 ms/);
    const waiting = machine.startCommand(['hold', '--wait']);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    first.stdin?.end();
    await output(waiting, /visibleDevices/);
    waiting.stdin?.end();
    await finished(waiting);
  });

  test('a wait ends when the pipe to hold’s input is closed, also when the process that had it was killed', async () => {
    const first = machine.startCommand(['hold', '-n', '4']);
    await output(first, /visibleDevices/);
    const waiting = machine.startCommand(['hold', '--wait']);
    const outcome = finished(waiting);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    waiting.stdin?.write('anything\n'.repeat(10_000));
    await machine.status();
    expect(waiting.exitCode).toBeNull();
    waiting.stdin?.end();
    const { code, stdout, stderr } = await outcome;
    expect({ code, stdout }).toEqual({ code: 130, stdout: '' });
    expect(stderr).toContain('standard input was closed while waiting for GPUs; nothing is held');

    const script = `import subprocess, sys, time
hold = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(hold.pid, flush=True)
time.sleep(60)`;
    const parent = machine.start([python, '-c', script, process.execPath, command, 'hold', '--wait']);
    const pid = Number(await output(parent, /(\d+)\n/));
    await output(parent, /waiting for (?:a|\d+) GPU/);
    parent.kill('SIGKILL');
    await until(() => [null, 'Z'].includes(processState(pid)));
  });

  test('with /dev/null as its input, hold waits: there is no pipe to watch', async () => {
    const first = machine.startCommand(['hold', '-n', '4']);
    await output(first, /visibleDevices/);
    const words = ['sh', '-c', 'exec "$@" </dev/null', 'sh', process.execPath, command, 'hold', '--wait'];
    const waiting = machine.start(words);
    const outcome = finished(waiting);
    await output(waiting, /waiting for (?:a|\d+) GPU/);
    await machine.status();
    first.stdin?.end();
    expect(await outcome).toMatchObject({ code: 0, stdout: expect.stringContaining('visibleDevices') });
  });

  test('hold --as sets the command that others see', async () => {
    const holder = machine.startCommand(['hold', '--as', 'python train.py (pid 7)']);
    await output(holder, /visibleDevices/);
    expect((await machine.status())[0].lease.command).toBe('python train.py (pid 7)');
  });

  test('hold keeps its GPUs while it is stopped and continued', async () => {
    const holder = machine.startCommand(['hold']);
    await output(holder, /visibleDevices/);
    holder.kill('SIGSTOP');
    await until(() => processState(holder.pid as number) === 'T');
    expect((await machine.states())[0]).toBe('leased');
    holder.kill('SIGCONT');
    holder.stdin?.end();
    expect((await finished(holder)).code).toBe(0);
  });
});
