import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { command, Machine, root, until } from '../support/machine.ts';

// Modules of Node.js that take milliseconds to load. Modules that are rarely needed must be loaded when they are.
const HEAVY = [
  'child_process',
  'crypto',
  'internal/util/parse_args/parse_args',
  'module',
  'net',
  'os',
  'stream',
  'perf_hooks',
  'timers/promises',
  'tty',
  'worker_threads',
];

let machine: Machine;
afterEach(() => machine.close());

// A terminal, or /dev/null, is looked at more closely: it might be one.
test.each(['&2', '/dev/null'])(
  '`run` loads nothing heavy on its way to the command, with 2>%s',
  async (destination) => {
    machine = new Machine(2);
    // Without a keeper to become, the process ends itself and can say what it has loaded.
    const build = join(machine.directory, 'build');
    mkdirSync(build);
    for (const name of ['gpu_owner.node', 'gpu-owner-placeholder', 'simulator']) {
      symlinkSync(join(binaries(), name), join(build, name));
    }
    const hook = join(machine.directory, 'hook.cjs');
    writeFileSync(
      hook,
      `const before = new Set(process.moduleLoadList);
     process.on('exit', () => {
       const loaded = process.moduleLoadList.filter((name) => !before.has(name));
       require('node:fs').writeSync(1, loaded.map((name) => name.replace(/^.*Module /, '')).join('\\n'));
     });`,
    );
    const { stdout, stderr } = await machine.run(
      [
        'sh',
        '-c',
        `exec "$@" 2>${destination}`,
        'sh',
        ...[process.execPath, '-r', hook, command, 'run', '-n', '2', '--', 'true'],
      ],
      { env: { GPU_OWNER_BUILD: build } },
    );
    if (destination !== '/dev/null') expect(stderr).toMatch(/keeper .* can't be started/);
    const loaded = stdout.split('\n');
    // The list works; Node.js 24 has the first one in its snapshot, Node.js 20 the second one.
    expect(['diagnostics_channel', 'vm'].filter((name) => loaded.includes(name))).not.toEqual([]);
    expect(loaded.filter((name) => HEAVY.includes(name))).toEqual([]);
  },
);

test('a wait sets no flag of V8, which would refuse the code cache that the waiter leaves', async () => {
  machine = new Machine(1);
  machine.startCommand(['run', '--', 'sleep', '30']);
  await until(() => machine.processes(0).length > 0);
  const hook = join(machine.directory, 'hook.cjs');
  writeFileSync(
    hook,
    `process.on('exit', () => console.log(process.moduleLoadList.includes('NativeModule v8')));`,
  );
  const words = [process.execPath, '-r', hook, command, 'run', '--wait=1s', '--', 'true'];
  const { code, stdout } = await machine.run(words);
  expect({ code, stdout }).toEqual({ code: 75, stdout: 'false\n' });
});

test.each([
  ['other machines', 'ERR_HOST_KEY', 'command.cjs'],
  ['sweeps', 'config_exp', 'experiments.cjs'],
  ['agents', 'gpu_queue', 'agents.cjs'],
])('the bundle of `run` has nothing of %s', (_, word, bundle) => {
  const hasWord = (name: string) => readFileSync(join(root, 'dist', name), 'utf8').includes(word);
  expect({ claim: hasWord('claim.cjs'), other: hasWord(bundle) }).toEqual({ claim: false, other: true });
});
