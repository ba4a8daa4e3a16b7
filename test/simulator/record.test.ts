// gpu-owner simulate record: a machine that is described by what it wrote is the same one.
import { readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { Machine } from '../support/machine.ts';

const tool = join(binaries(), 'gpu-owner-simulator');
/** A real machine whose driver reserves no whole number of MiB. */
const H200 = join(import.meta.dirname, 'fixtures/h200-580.conf');
const UUID = /(?:(?:GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;

let machine: Machine;
afterEach(() => machine.close());

/** Every GPU, as gpu-owner describes it. */
async function status(name?: string): Promise<string> {
  const args = name === undefined ? [] : [`--simulate=${name}`];
  const { code, stdout, stderr } = await machine.runCommand(['status', '--json', ...args], {
    cwd: machine.directory,
  });
  expect(stderr).toBe('');
  expect(code).toBe(0);
  return stdout;
}

describe('simulate record', () => {
  test.each(['a100x4-mig', 'wsl', 'jetson', H200])(
    '%s: status is the same on the machine that it wrote',
    async (name) => {
      machine = new Machine(name);
      const file = `./${basename(name, '.conf')}.conf`;
      const recorded = await machine.runCommand(['simulate', 'record', '--output', file], {
        cwd: machine.directory,
      });
      expect(recorded).toMatchObject({ code: 0, stdout: '', stderr: '' });
      const [before, after] = [await status(), await status(file)];
      const made = (uuid: string) => uuid.replace(/[0-9a-f]{8}-.*$/, 'UUID');
      expect(after.replaceAll(UUID, made)).toBe(before.replaceAll(UUID, made));
      // Under WSL the driver lists no processes, and hides its UUIDs no less.
      const uuids = before.match(UUID) ?? [];
      expect(uuids.length).toBeGreaterThan(0);
      for (const uuid of uuids)
        expect(readFileSync(join(machine.directory, file), 'utf8')).not.toContain(uuid);
    },
  );

  test('--uuids keeps the UUIDs', async () => {
    machine = new Machine('a100x4-mig');
    const { stdout } = await machine.runCommand(['simulate', '--machine', 'a100x4-mig', 'record', '--uuids']);
    expect(stdout).toContain('# It has the UUIDs of the GPUs');
    const file = join(machine.directory, 'server.conf');
    await machine.runCommand(['simulate', 'record', '--uuids', `--output=${file}`]);
    expect(readFileSync(file, 'utf8')).toBe(stdout);
    expect(await status(file)).toBe(await status());
  });

  test('a GPU at work is recorded as one at rest, and no process is', async () => {
    machine = new Machine('h200x8');
    const busy = machine.start([
      tool,
      'occupy',
      '0',
      '--memory',
      '20GiB',
      '--name',
      'secret',
      '--utilization',
      '90',
    ]);
    await new Promise((resolve) => busy.stdout?.once('data', resolve));
    const file = join(machine.directory, 'server.conf');
    await machine.runCommand(['simulate', 'record', `--output=${file}`]);
    expect(readFileSync(file, 'utf8')).not.toContain('secret');
    busy.stdin?.end();
    await new Promise((resolve) => busy.once('exit', resolve));
    expect((await status(file)).replaceAll(UUID, '')).toBe((await status()).replaceAll(UUID, ''));
  });

  test('a GPU that has failed is there, with a size that is said to be made up', async () => {
    machine = new Machine('2');
    machine.set('gpu=1', 'lost=on');
    const { stdout } = await machine.runCommand(['simulate', 'record']);
    expect(stdout).toContain("# The driver doesn't tell its memory (lost): this is made up.");
  });
});
