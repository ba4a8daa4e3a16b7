// `gpu-owner report` as its users see it. ledger.test.ts has the sums.
import { existsSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Machine, NOBODY, whyNotNobody } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('a100x4-mig');
});
afterEach(() => machine.close());

test('--csv has a header, and quotes names of programs', async () => {
  const program = join(machine.directory, 'a "b", c');
  symlinkSync('/bin/true', program);
  await machine.runCommand(['run', '--', program, 'secret']);
  const { stdout } = await machine.runCommand(['report', '--by', 'job', '--csv']);
  expect(stdout).toMatch(
    /^job,leases,gpu_hours,share,waited_seconds_p50,waited_seconds_p90,idle_share,energy_kwh\n"\w+:a ""b"", c",1,/,
  );
});

test('a time that begins before 1970 begins in it', async () => {
  const { stdout } = await machine.runCommand(['report', '--since', '100000d', '--json']);
  expect(JSON.parse(stdout).since).toBe('1970-01-02T00:00:00.000Z');
  expect((await machine.runCommand(['report', '--since', '100000d'])).stdout).toMatch(/^Since 1970-01-0\d /);
});

test.skipIf(whyNotNobody() !== null)(
  "a user sees the sums of others, and names of their jobs only with 'usageCommands: everybody'",
  async () => {
    await machine.runCommand(['run', 'true']);
    const keys = async () => {
      const { stdout } = await machine.runCommand(['report', '--by', 'job', '--json'], { uid: NOBODY });
      const { rows, longest } = JSON.parse(stdout);
      return [rows[0].key, longest[0].job];
    };
    expect(await keys()).toEqual(['root', 'root']);
    machine.configure('usageCommands: everybody\n');
    expect(await keys()).toEqual(['root:true', 'root:true']);
  },
);

test('usageKept of the configuration says when old files are removed', async () => {
  const ledger = join(machine.lockDirectory, 'usage');
  const uid = process.geteuid?.();
  const old = join(
    ledger,
    `${uid}-${new Date(Date.now() - 100 * 86_400_000).toISOString().slice(0, 7)}.jsonl`,
  );
  const begin = async () => {
    rmSync(ledger, { recursive: true, force: true });
    mkdirSync(ledger, { recursive: true });
    writeFileSync(old, '');
    await machine.runCommand(['run', 'true']);
  };
  await begin();
  expect(existsSync(old)).toBe(true);
  machine.configure('usageKept: 30d\n');
  await begin();
  expect(existsSync(old)).toBe(false);
});

test.skipIf(existsSync('/var/lib/gpu-owner/usage'))(
  'without a ledger, report says how to have one',
  async () => {
    const { code, stderr } = await machine.runCommand(['report', '--lock-dir', '/dev/shm'], {
      env: { GPU_OWNER_SIMULATE: undefined },
    });
    expect(code).toBe(73);
    expect(stderr).toContain('As root: install -d -m 1777 /var/lib/gpu-owner/usage');
  },
);

test.each([
  ['of MIG instances', ['--devices', '0:3']],
  ['of a part of a GPU', ['--devices', '2', '--memory', '10GiB']],
])('run --idle says that the use %s is unknown', async (which, options) => {
  const { code, stderr } = await machine.runCommand(['run', '--idle', '1h', ...options, '--', 'true']);
  expect({ code, stderr }).toEqual({
    code: 0,
    stderr: `gpu-owner: warning: --idle doesn't end the command: whether it uses its GPUs can't be told ${which}.\n`,
  });
});
