// Runtimes other than Node.js. In Bun, assigning to `process.env` only changes what JavaScript sees.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { command, Machine } from '../support/machine.ts';

let machine: Machine;
let preloaded: string;
beforeEach(() => {
  machine = new Machine('2');
  preloaded = join(machine.directory, 'preloaded.cjs');
});
afterEach(() => machine.close());

const run = (...words: string[]) =>
  machine.run([process.execPath, '--require', preloaded, command, ...words]);

test('a command gets its variables also where process.env is not the environment', async () => {
  writeFileSync(preloaded, 'process.env = { ...process.env };');
  const print = ['sh', '-c', 'echo "$CUDA_VISIBLE_DEVICES $GPU_OWNER_INHERITED"'];
  const { code, stdout } = await run('run', '--simulate', '3', '-n', '3', '--', ...print);
  expect(code).toBe(0);
  expect(stdout).toMatch(/^GPU-\S+,GPU-\S+,GPU-\S+ \n$/);
  expect(await run('submit', '--name', 'job', '--', ...print)).toMatchObject({ code: 0 });
  expect(await run('wait', 'job')).toMatchObject({ code: 0 });
  expect((await run('logs', 'job')).stdout).toMatch(/^GPU-\S+ \n$/);
});

test('a sweep in Bun, whose workers would wait for ever, is refused', async () => {
  writeFileSync(preloaded, "Object.defineProperty(process.versions, 'bun', { value: '1.3.0' });");
  const { code, stderr } = await run('exp', 'run', '--gpus', '1', '--grid', 'n=1', '--', 'true');
  expect(code).toBe(69);
  expect(stderr).toBe(
    'gpu-owner: sweeps need Node.js, and this is Bun 1.3.0: set GPU_OWNER_NODE to the path of a Node.js, or leave out --bun.\n',
  );
});
