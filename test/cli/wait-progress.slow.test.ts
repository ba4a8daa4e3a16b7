import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { command, finished, Machine, output, pause, python } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const bridge = join(import.meta.dirname, '../jobs/fixtures/pty_bridge.py');

async function holder(...options: string[]) {
  const child = machine.startCommand(['hold', '--placeholder', 'none', ...options]);
  await output(child, /visibleDevices/);
  return child;
}

test('on a terminal a wait shows one line, which is kept current, cut to the width, and erased at the end', async () => {
  const first = await holder();
  const script = `stty cols 60; exec ${process.execPath} ${command} run -- echo ran`;
  const terminal = machine.start([python, bridge, 'sh', '-c', script], { env: { TERM: 'xterm' } });
  const outcome = finished(terminal);
  await output(terminal, /\([2-9] s\)/); // a busy machine skips seconds
  first.stdin?.end();
  const { stdout } = await outcome;
  const [line, ...rest] = stdout.split('\r\n');
  const frames = (line as string).split('\r\u001b[K');
  expect(frames.shift()).toBe('');
  expect(frames.pop()).toBe('ran');
  for (const frame of frames) {
    expect(frame).toMatch(/^gpu-owner: waiting for a GPU, 1st in the queue \(\d+ m?s\).*…$/);
    expect(frame.length).toBeLessThan(60);
  }
  expect(frames.length).toBeGreaterThan(1);
  expect(rest.join('')).toContain('[status 0]');
});

test('on a terminal, characters that take two columns count as two', async () => {
  const first = await holder('--as', '\u8bad\u7ec3'.repeat(20));
  const script = `stty cols 120; exec ${process.execPath} ${command} run -- echo ran`;
  const terminal = machine.start([python, bridge, 'sh', '-c', script], { env: { TERM: 'xterm' } });
  const outcome = finished(terminal);
  await output(terminal, /waiting/);
  first.stdin?.end();
  const frames = (await outcome).stdout.split('\r\u001b[K').filter((text) => text.includes('waiting'));
  for (const frame of frames) {
    expect(frame).toMatch(/\u8bad.*\u2026$/);
    expect(frame.replace(/[\u8bad\u7ec3]/g, 'xx').length).toBeLessThan(120);
  }
  expect(frames.length).toBeGreaterThan(0);
});

test('in the background of a terminal a wait prints plain lines, so that nothing is painted over the prompt', async () => {
  const first = await holder();
  const script = `set -m; ${process.execPath} ${command} run -- echo ran & wait`;
  const terminal = machine.start([python, bridge, 'sh', '-c', script], { env: { TERM: 'xterm' } });
  const outcome = finished(terminal);
  await output(terminal, /waiting/);
  await pause(1_200); // on a terminal's foreground, the line is painted every second
  first.stdin?.end();
  const { stdout } = await outcome;
  expect(stdout.match(/waiting/g)).toHaveLength(1);
  expect(stdout).not.toContain('\u001b');
  expect(stdout).toMatch(/^ran\r$/m);
});

test('without a terminal a wait prints plain lines, and a new one only when something has changed', async () => {
  const first = await holder();
  const waiting = machine.startCommand(['run', '--', 'true']);
  const outcome = finished(waiting);
  await output(waiting, /waiting/);
  const second = machine.startCommand(['run', '--', 'true']);
  const behind = finished(second);
  await output(second, /waiting for a GPU, 2nd in the queue:\n {2}GPU 0: leased by/);
  let said = '';
  second.stderr?.on('data', (text) => {
    said += text;
  });
  await pause(1_200);
  expect(said).toBe('');
  first.stdin?.end();
  expect((await outcome).stderr).toMatch(
    /^gpu-owner: waiting for a GPU, 1st in the queue:\n {2}GPU 0: leased by .*\n$/,
  );
  const { code, stderr } = await behind;
  expect(code).toBe(0);
  // That the first waiter has the GPU now may be news.
  const news = stderr.split(/(?=gpu-owner: waiting)/);
  expect(new Set(news).size).toBe(news.length);
});

test('the command runs even if nobody reads what the wait prints', async () => {
  const first = await holder();
  const script = '{ "$@" 2>&1 >&3 | true; } 3>&1';
  const words = [process.execPath, command, 'run', '--', 'echo', 'ran'];
  const outcome = finished(machine.start(['sh', '-c', script, 'sh', ...words]));
  await pause(700);
  first.stdin?.end();
  expect((await outcome).stdout).toBe('ran\n');
});

test('a wait for fewer GPUs than the machine has says that CUDA_VISIBLE_DEVICES leaves out the others', async () => {
  const wide = new Machine(3);
  try {
    const first = wide.startCommand(['hold', '--placeholder', 'none', '--devices', '0']);
    await output(first, /visibleDevices/);
    const waiting = wide.startCommand(['run', '--', 'echo', 'ran'], { env: { CUDA_VISIBLE_DEVICES: '0' } });
    const outcome = finished(waiting);
    await output(waiting, /2 other GPUs/);
    first.stdin?.end();
    const { code, stderr } = await outcome;
    expect(code).toBe(0);
    expect(stderr).toMatch(
      /^gpu-owner: waiting for a GPU, 1st in the queue:\n {2}GPU 0: leased by .*\n {2}the CUDA_VISIBLE_DEVICES that was inherited leaves out 2 other GPUs\n$/,
    );
  } finally {
    await wide.close();
  }
});
