// Rules about what may be claimed, in configuration files.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Diagnosis, diagnose, said } from '../support/doctor.ts';
import { Machine } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('mixed'); // a T400, an RTX 4090 and an A100
});
afterEach(() => machine.close());

function configured(text: string, env: Record<string, string> = {}): Promise<Diagnosis> {
  const path = join(machine.directory, 'config.yaml');
  writeFileSync(path, text);
  return diagnose(machine, { env: { GPU_OWNER_MACHINE_CONFIG: path, ...env } });
}

describe('configuration files', () => {
  test('a valid configuration file is named', async () => {
    const diagnosis = await configured('lockTimeout: 3s\n');
    expect(diagnosis.ids).toEqual([]);
    expect(said(diagnosis, 'configuration')).toMatch(/config\.yaml is valid/);
  });

  test('enforcement that is configured and doesn’t run is named', async () => {
    const diagnosis = await configured('enforce: {}\n');
    expect(diagnosis.ids).toEqual(['enforce-not-running']);
    expect(said(diagnosis, 'enforce-not-running')).toMatch(/hasn't looked since the machine was started/);
    writeFileSync(join(machine.lockDirectory, '../enforce.json'), '{}');
    expect((await configured('enforce: {}\n')).ids).toEqual([]);
  });

  test('a broken configuration file is told once, as a claim tells it', async () => {
    const diagnosis = await configured('exlcude: 0\n');
    expect(diagnosis).toMatchObject({ code: 1, ids: ['ERR_CONFIGURATION'] });
    expect(said(diagnosis, 'ERR_CONFIGURATION')).toMatch(
      /config\.yaml:1: there is no key 'exlcude'; did you mean 'exclude'\?/,
    );
  });
});
