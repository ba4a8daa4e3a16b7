import { appendFileSync, chmodSync, chownSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { diagnoseLocks, said } from '../support/doctor.ts';
import { Machine, NOBODY, whyNotNobody } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

test.skipIf(whyNotNobody() !== null)(
  'the doctor names what is wrong with the ledger of usage, and the remedies help',
  async () => {
    await machine.runCommand(['run', 'true']);
    const ledger = join(machine.lockDirectory, 'usage');
    const own = join(ledger, `0-${new Date().toISOString().slice(0, 7)}.jsonl`);
    appendFileSync(own, 'nonsense\n');
    const forged = join(ledger, '0-2020-01.jsonl');
    writeFileSync(forged, '');
    chownSync(forged, NOBODY, NOBODY);
    chownSync(ledger, NOBODY, NOBODY);
    chmodSync(ledger, 0o777);
    expect(await machine.runCommand(['run', 'true'])).toMatchObject({
      code: 0,
      stderr: expect.stringContaining('where other users could remove the file. As root: chmod 1777'),
    });
    const diagnosis = await diagnoseLocks(machine);
    expect(diagnosis.ids.sort()).toEqual(['ledger-damaged', 'ledger-files', 'ledger-mode']);
    expect(said(diagnosis, 'ledger-damaged')).toMatch(`A line of ${own} makes no sense`);
    expect(said(diagnosis, 'ledger-files')).toMatch(`${forged} isn't a file of the user`);
    expect(said(diagnosis, 'ledger-mode')).toMatch('belongs to nobody with mode 0777');
    for (const { remedy } of diagnosis.findings.filter(({ id }) => id.startsWith('ledger-')))
      for (const [, line = ''] of remedy?.matchAll(/`([^`]+)`/g) ?? []) await machine.run(['sh', '-c', line]);
    expect((await diagnoseLocks(machine)).ids).toEqual(['ledger-damaged']);
  },
);

test.skipIf(whyNotNobody() !== null)(
  'no remedy follows a link that a user has put in place of the ledger',
  async () => {
    await machine.runCommand(['run', 'true']);
    const ledger = join(machine.lockDirectory, 'usage');
    rmSync(ledger, { recursive: true });
    await machine.run(['ln', '-s', machine.directory, ledger], { uid: NOBODY });
    const report = await machine.runCommand(['report']);
    expect(report.code).toBe(73);
    const cause = `${ledger} is a symbolic link of nobody, and no link is followed there`;
    const remedy = `As root: \`rm ${ledger}\`, \`install -d -m 1777 ${ledger}\`; to have the ledger on another disk, \`mount --bind DIRECTORY ${ledger}\``;
    expect(report.stderr).toMatch(`the ledger of usage can't be read: ${cause}. ${remedy}.`);
    const run = await machine.runCommand(['run', 'true']);
    expect(run.code).toBe(0);
    expect(run.stderr).toMatch(`isn't noted in the ledger, and reports will lack it: ${cause}. ${remedy}.`);
    const diagnosis = await diagnoseLocks(machine);
    expect(diagnosis.ids).toEqual(['ledger-mode']);
    expect(said(diagnosis, 'ledger-mode')).toMatch(`${cause}: leases aren't noted`);
    expect(diagnosis.findings.find(({ id }) => id === 'ledger-mode')?.remedy).toBe(remedy);
  },
);

test('without a ledger the doctor says how to have one', async () => {
  const { findings } = await diagnoseLocks(machine, {
    env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_LOCK_DIR: '/dev/shm' },
  });
  const found = findings.find(({ id }) => id === 'ledger-missing');
  expect(found?.remedy).toContain('install -d -m 1777 /var/lib/gpu-owner/usage');
});
