import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { commandProblem } from '../../lib/jobs/command-check.ts';
import { binaries } from '../support/binaries.ts';
import {
  command,
  finished,
  launcher,
  Machine,
  NOBODY,
  output,
  pause,
  processState,
  python,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';

const cudaUser = join(import.meta.dirname, 'fixtures/cuda_user.py');
const simulator = join(binaries(), 'gpu-owner-simulator');
const FREE = ['free', 'free'];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

describe('the exit code of run', () => {
  test('is the command’s, or 128 + the signal that ended it', async () => {
    const run = (script: string) =>
      machine.runCommand(['run', '--placeholder', 'none', '--', 'sh', '-c', script]);
    expect(await run('exit 75')).toEqual({ code: 75, signal: null, stdout: '', stderr: '' });
    expect(await run('kill -9 $$')).toMatchObject({ code: 137, signal: null });
    await expect.poll(() => machine.states()).toEqual(FREE);
  });

  test('is 127 for a command that is not there, 126 for one that can’t be run, and nothing stays claimed', async () => {
    const file = join(machine.directory, 'file');
    writeFileSync(file, 'text');
    const folder = join(machine.directory, 'folder');
    mkdirSync(folder);
    const script = (name: string, text: string) => {
      writeFileSync(join(machine.directory, name), text, { mode: 0o755 });
      return join(machine.directory, name);
    };
    for (const [words, code, message] of [
      [['pyhton'], 127, /cannot run 'pyhton': not found in PATH; did you mean 'python3?'\?/],
      [['/nonexistent/python'], 127, /not found/],
      [[''], 127, /cannot run '': not found/],
      [['%'], 127, /cannot run '%': not found in PATH$/m],
      [[`${folder}/../flie`], 127, /did you mean '.*\/folder\/\.\.\/file'\?/],
      [
        [script('interpreter', '#!/usr/bin/pyhton')],
        127,
        /'\/usr\/bin\/pyhton' in its first line was not found/,
      ],
      [
        [script('env.py', '#!/usr/bin/env pyhton3')],
        127,
        /'pyhton3' in its first .* write: python3 \S+env\.py/,
      ],
      [
        [script('windows', '#!/bin/sh\r\necho\r')],
        127,
        /as in Windows \(CR LF\); write: sed -i 's\/\\r\$\/\/' \S+windows/,
      ],
      [['cd', '/'], 127, /only a shell understands it; write: bash -c 'cd \/'/],
      [['cd', '/;', 'ls'], 127, /only a shell understands it; write: bash -c 'cd \/; ls'/],
      [['sh -c true'], 127, /because of the quotes; write: sh -c true/],
      [[file], 126, /not executable \(permission denied\)/],
      [[folder], 126, /is a directory/],
      [[`${file}/x`], 127, /not found/],
    ] as const) {
      const problem = commandProblem(words);
      expect([words, problem?.exitCode]).toEqual([words, code]);
      expect(problem?.message).toMatch(message);
    }
    for (const line of ['#!/usr/bin/env -S sh -e', '#! /bin/sh', 'true'])
      expect([line, commandProblem([script('right', `${line}\nexit 7\n`)])]).toEqual([line, null]);
    const plain = await machine.runCommand(['run', '--', file]);
    expect(plain).toMatchObject({ code: 126, stderr: expect.stringMatching(/not executable/) });
    // Also where nothing is free: a command that doesn't exist needn't wait for GPUs.
    const holder = machine.startCommand(['hold', '-n', '2']);
    await output(holder, /visibleDevices/);
    expect(await machine.runCommand(['run', '--', 'pyhton'])).toMatchObject({ code: 127 });
    holder.stdin?.end();
    await finished(holder, 'exit');
    await expect.poll(() => machine.states()).toEqual(FREE);
    expect(machine.processes(0)).toEqual([]);
  });
});

describe('output and input', () => {
  test('are the command’s: large, binary, in order, and ended when it closes them', async () => {
    const bytes = Buffer.from(Array.from({ length: 1 << 20 }, (_, i) => (i * 31) & 0xff));
    const file = join(machine.directory, 'input');
    writeFileSync(file, bytes);
    const { code, stdout } = await machine.run([
      'sh',
      '-c',
      `${process.execPath} ${command} run -- cat <${file} | cmp - ${file} && echo same`,
    ]);
    expect({ code, stdout }).toEqual({ code: 0, stdout: 'same\n' });
  });

  test('what the command leaves unread stays for the next', async () => {
    const { stdout } = await machine.run(
      ['sh', '-c', `${launcher} run -- sh -c 'read a; echo "command: $a"'; read b; echo "shell: $b"`],
      {},
      'one\ntwo\n',
    );
    expect(stdout).toBe('command: one\nshell: two\n');
  });
});

describe('the GPU of a command', () => {
  test('is the one that CUDA shows it, and the lease names the command', async () => {
    const runs = [0, 1].map(() => machine.startCommand(['run', '--', python, cudaUser]));
    const seen = await Promise.all(runs.map((run) => output(run, /using (\S+)/)));
    expect(seen.sort()).toEqual([uuidOf(0), uuidOf(1)]);
    for (const gpu of await machine.status()) {
      expect(gpu.state).toBe('leased');
      expect(gpu.lease.command).toBe(`${python} ${cudaUser}`);
    }
    const outcomes = runs.map((run) => finished(run));
    for (const run of runs) run.stdin?.end();
    for (const { code } of await Promise.all(outcomes)) expect(code).toBe(0);
  });

  test('is taken by number as well, for software that parses integers', async () => {
    const holder = machine.startCommand(['hold', '--devices', '0']);
    await output(holder, /visibleDevices/);
    const run = machine.startCommand(['run', '--visible-devices', 'index', '--', python, cudaUser]);
    expect(await output(run, /using (\S+)/)).toBe(uuidOf(1));
  });
});

describe('the placeholder', () => {
  /** Starts a command that uses CUDA only when it is told to. */
  async function late(mode: string[]) {
    const run = machine.startCommand([
      'run',
      ...mode,
      '--',
      'sh',
      '-c',
      `echo begun $$; read line; exec ${python} ${cudaUser} 200`,
    ]);
    const pid = Number(await output(run, /begun (\d+)/));
    return { run, pid, go: () => run.stdin?.write('go\n') };
  }

  test('auto takes the GPU from the start, until the command has come', async () => {
    const { run, pid, go } = await late([]);
    const [placeholder] = machine.processes(0);
    expect(placeholder).not.toBe(pid);
    expect(readFileSync(`/proc/${placeholder}/comm`, 'utf8')).toMatch(/^gpu-owner-place/);
    go();
    await output(run, /using/);
    await until(() => machine.processes(0).join() === String(pid));
    run.stdin?.end();
    expect((await finished(run)).code).toBe(0);
    expect(machine.processes(0)).toEqual([]);
  });

  test('keep takes the GPU until the command has ended', async () => {
    const { run, pid, go } = await late(['--placeholder', 'keep']);
    go();
    await output(run, /using/);
    await pause(700);
    expect(machine.processes(0)).toHaveLength(2);
    expect(machine.processes(0)).toContain(pid);
    run.stdin?.end();
    expect((await finished(run)).code).toBe(0);
    await until(() => machine.processes(0).length === 0);
  });

  test('none leaves the GPU to the command alone', async () => {
    const { run, pid, go } = await late(['--placeholder', 'none']);
    expect(machine.processes(0)).toEqual([]);
    go();
    await output(run, /using/);
    expect(machine.processes(0)).toEqual([pid]);
  });

  test('goes with the command, also where that never touches the GPU, and when all is killed', async () => {
    expect((await machine.runCommand(['run', '--', 'true'])).code).toBe(0);
    await until(() => machine.processes(0).length === 0);
    const { run, pid } = await late(['--placeholder', 'keep']);
    sendSignal(pid, 'SIGKILL');
    expect((await finished(run)).code).toBe(137);
    await until(() => machine.processes(0).length === 0);
  });

  test('a placeholder that fails gives everything back and says why, and what helps', async () => {
    machine.set('gpu=all', 'error=cuda-context:2');
    const { code, stdout, stderr } = await machine.runCommand(['run', '--no-wait', '--', 'echo', 'it ran']);
    expect({ code, stdout }).toEqual({ code: 69, stdout: '' });
    expect(stderr).toMatch(
      /the placeholder on GPU 0 failed: .*CUDA_ERROR_OUT_OF_MEMORY.*`nvidia-smi` shows what uses the memory/,
    );
    await expect.poll(() => machine.states()).toEqual(FREE);
  });
});

describe('a program without a claim', () => {
  test('keeps the GPU that it uses', async () => {
    const stranger = machine.start([simulator, 'occupy', '0', '--name', 'jupyter']);
    await output(stranger, /ready/);
    expect((await machine.runCommand(['run', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES'])).stdout).toBe(
      `${uuidOf(1)}\n`,
    );
    const { code, stderr } = await machine.runCommand(['run', '--no-wait', '-n', '2', '--', 'true']);
    expect(code).toBe(75);
    expect(stderr).toMatch(/GPU 0: busy: jupyter \(pid \d+, \w+\) uses/);
  });

  test('a process that comes between the lease and the placeholder keeps the GPU, and the claim takes another', async () => {
    const run = machine.startCommand(['run', '--', 'sh', '-c', 'echo has $CUDA_VISIBLE_DEVICES'], {
      env: { GPU_OWNER_STOP_AT: 'environment' },
    });
    await until(() => processState(run.pid as number) === 'T');
    expect((await machine.states())[0]).toBe('leased');
    const stranger = machine.start([simulator, 'occupy', '0']);
    await output(stranger, /ready/);
    // The run stops at this step again, this time with the other GPU.
    run.kill('SIGCONT');
    await until(async () => (await machine.states())[1] === 'leased');
    await until(() => processState(run.pid as number) === 'T');
    run.kill('SIGCONT');
    expect(await output(run, /has (\S+)/)).toBe(uuidOf(1));
  });

  test('a waiter goes on as soon as such a process has left', async () => {
    const stranger = machine.start([simulator, 'occupy', '0']);
    await output(stranger, /ready/);
    const run = machine.startCommand(['run', '-n', '2', '--', 'echo', 'it ran']);
    const outcome = finished(run);
    await output(run, /waiting for 2 GPUs, 1st in the queue:\n {2}GPU 0: busy/);
    stranger.kill('SIGKILL');
    expect(await outcome).toMatchObject({ code: 0, stdout: 'it ran\n' });
  });
});

describe('kill -9 in the middle', () => {
  test.each(['SIGKILL', 'SIGTERM', 'SIGINT', 'SIGHUP'] as const)(
    '%s while the claim is made, at any moment, leaves nothing claimed and no process',
    async (signal) => {
      for (const milliseconds of signal === 'SIGKILL' ? [20, 45, 75, 120] : [60]) {
        const run = machine.startCommand(['run', '-n', '2', '--', 'true']);
        const outcome = finished(run);
        await pause(milliseconds);
        run.kill(signal);
        await outcome;
      }
      await until(() => machine.processes(0).length + machine.processes(1).length === 0);
      expect(await machine.runCommand(['run', '--no-wait', '-n', '2', '--', 'echo', 'it ran'])).toMatchObject(
        { code: 0, stdout: 'it ran\n' },
      );
    },
  );

  test('the end of a placeholder leaves the command and the lease alone', async () => {
    const run = machine.startCommand([
      'run',
      '--placeholder',
      'keep',
      '--',
      'sh',
      '-c',
      'echo begun; read line; echo done',
    ]);
    const outcome = finished(run);
    await output(run, /begun/);
    sendSignal(machine.processes(0)[0], 'SIGKILL');
    await until(() => machine.processes(0).length === 0);
    expect((await machine.states())[0]).toBe('leased');
    run.stdin?.end('\n');
    expect(await outcome).toMatchObject({ code: 0, stdout: 'begun\ndone\n', stderr: '' });
    await expect.poll(() => machine.states()).toEqual(FREE);
  });
});

test.skipIf(whyNotNobody() !== null)(
  'each of two users sees who the other is, and can’t end the other’s lease',
  async () => {
    const theirs = machine.startCommand(['run', '--', python, cudaUser], { uid: NOBODY, umask: '077' });
    await output(theirs, /using/);
    const ours = machine.startCommand(['run', '--', python, cudaUser], { umask: '077' });
    expect(await output(ours, /using (\S+)/)).toBe(uuidOf(1));
    const [a, b] = await machine.status();
    expect([a.lease.user, b.lease.user]).toEqual(['nobody', 'root']);
    const seen = await machine.runCommand(['run', '--no-wait', '--', 'true'], { uid: NOBODY });
    expect(seen.stderr).toMatch(/GPU 0: leased by nobody since .*\n {2}GPU 1: leased by root since/);
  },
);
