// The units in examples/systemd: systemd understands them, and so does the command.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { launcher, Machine, root } from '../support/machine.ts';

const units = join(root, 'examples/systemd');
const names = readdirSync(units);
const services = names.filter((name) => name.endsWith('.service'));
const textOf = (name: string) => readFileSync(join(units, name), 'utf8');
const hasAnalyze = spawnSync('systemd-analyze', ['--version']).status === 0;

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

test.skipIf(!hasAnalyze)('systemd-analyze has no complaint about the units (needs systemd)', () => {
  const verify = (name: string, text: string) => {
    const path = join(machine.directory, name);
    // systemd-analyze looks whether the program is there.
    writeFileSync(path, text.replaceAll('/usr/local/bin/gpu-owner', launcher));
    const env = { ...process.env, XDG_RUNTIME_DIR: machine.directory };
    const { stderr } = spawnSync('systemd-analyze', ['verify', '--user', path], { env, encoding: 'utf8' });
    return stderr.split('\n').filter((line) => line.includes(name));
  };
  for (const name of names) expect(verify(name, textOf(name)), name).toEqual([]);
  const [name = ''] = services;
  expect(verify(name, textOf(name).replace('Restart=on-failure', 'Restart=sometimes'))).not.toEqual([]);
});

test('the units set what exists, and tasks get less time to end than the service', () => {
  const variables = readFileSync(join(root, 'docs/administrators.md'), 'utf8');
  for (const name of names) {
    const text = textOf(name);
    for (const [, variable] of text.matchAll(/^Environment=(\w+)=/gm))
      expect(variables).toContain(`\`${variable}\``);
    const grace = /--grace (\d+)m/.exec(text)?.[1];
    const stop = /^TimeoutStopSec=(\d+)min$/m.exec(text)?.[1];
    if (grace !== undefined) expect(Number(stop)).toBeGreaterThan(Number(grace));
  }
  expect(names.filter((name) => textOf(name).includes('--grace'))).toHaveLength(2);
});

test('the commands that the units start are right', async () => {
  const project = join(machine.directory, 'project');
  mkdirSync(project);
  for (const name of services) {
    const words = /^ExecStart=\S+ (.*)$/m.exec(textOf(name))?.[1]?.split(' ') ?? [];
    expect(words[0]).toMatch(/^(?:enforce|exp|metrics|web)$/);
    // Everything but the last is understood.
    const { stderr } = await machine.runCommand([...words, '--nonsense'], { cwd: project });
    expect(stderr).toMatch(/there is no option --nonsense/);
  }
});
