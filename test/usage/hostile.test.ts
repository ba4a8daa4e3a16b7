// Lines that one user writes into the ledger, as others see them.
import { chownSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, Machine, NOBODY, python, uuidOf, whyNotNobody } from '../support/machine.ts';

const HOUR = 3_600_000;
const month = new Date().toISOString().slice(0, 7);
/** Runs a program; writes its processor time in s, and its memory in MiB. */
const MEASURE = `
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}")
sys.exit(code)`;
const whyNot = whyNotNobody();

describe.skipIf(whyNot !== null)(`another user's lines in the ledger ${whyNot ?? ''}`, () => {
  let machine: Machine;
  let ledger: string;
  beforeEach(async () => {
    machine = new Machine(2);
    ledger = join(machine.lockDirectory, 'usage');
    await machine.runCommand(['run', 'true']);
  });
  afterEach(() => machine.close());

  /** A line of one hour of a GPU that began so long ago. */
  const line = (ago: number, change: object = {}) => {
    const lease = { since: Date.now() - ago, waited: 0, gpus: [{ index: 0, uuid: uuidOf(0) }], program: 'x' };
    return `${JSON.stringify({ ...lease, held: HOUR, ended: true, ...change }).padEnd(300)}\n`;
  };
  const forge = (text: string | Buffer, name = `${NOBODY}-${month}.jsonl`) => {
    writeFileSync(join(ledger, name), text);
    chownSync(join(ledger, name), NOBODY, NOBODY);
  };
  const report = async (...args: string[]) => {
    const { code, stdout, stderr } = await machine.runCommand(['report', '--since', '1d', '--json', ...args]);
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const { rows, skipped } = JSON.parse(stdout);
    return { rows: Object.fromEntries(rows.map((row: { key: string }) => [row.key, row])), skipped };
  };

  test('count only for GPUs that exist, each once', async () => {
    const gpus = (count: number, index = 0) =>
      Array.from({ length: count }, () => ({ index, uuid: uuidOf(0) }));
    forge(
      [1024, 2].map((count) => line(2 * HOUR, { gpus: gpus(count) })).join('') +
        line(2 * HOUR, { gpus: gpus(1, 2) }),
    );
    const { rows, skipped } = await report();
    expect(Object.keys(rows)).toEqual(['root']);
    expect(skipped).toBe(3);
    const { stdout } = await machine.runCommand(['report']);
    expect(stdout).toContain(
      'Lines or files that were skipped: 3 of nobody. They are damaged, not their user',
    );
    expect(stdout).not.toMatch(/(0,){3}/);
  });

  test('count for no more hours than have passed, on no day', async () => {
    const day = 24 * HOUR;
    forge(Array.from({ length: 60 }, () => line(2 * HOUR) + line(20 * day, { held: 30 * day })).join(''));
    const whole = (await report('--since', '10d')).rows.nobody;
    expect(whole.gpuHours).toBeCloseTo(240, 0);
    expect(whole.share).toBeLessThanOrEqual(0.5 + 1e-6);
    const { rows, skipped } = await report('--since', '10d', '--by', 'day');
    for (const { gpuHours, share } of Object.values(rows) as { gpuHours: number; share: number }[])
      expect([gpuHours, share]).toEqual([
        expect.toSatisfy((hours) => hours < 24.01),
        expect.toSatisfy((of) => of < 0.51),
      ]);
    expect(skipped).toBeGreaterThan(100);
    const metrics = (await machine.runCommand(['metrics'])).stdout;
    const seconds = Number(/gpu_seconds_total\{user="nobody".*\} (.*)/.exec(metrics)?.[1] ?? 0);
    expect(seconds).toBeLessThanOrEqual(2 * 1.1 * uptime());
  });

  test('count for groups of their user only, and use no more energy than cards do', async () => {
    forge(line(2 * HOUR, { gid: 0, metered: HOUR, energy: 2 ** 49 }));
    const { rows } = await report('--by', 'group');
    expect(Object.keys(rows).sort()).toEqual(['nogroup', 'root']);
    expect(rows.nogroup).toMatchObject({ leases: 1, energyKWh: null });
    expect(rows.root).toMatchObject({ leases: 1 });
  });

  test('cost others little time and memory, however long the files are', async () => {
    const running = Buffer.from(line(HOUR, { held: 0, ended: false, gpus: [{ index: 1, uuid: 'x' }] }));
    const many = Buffer.concat(Array.from({ length: 110_000 }, () => running));
    const months = [
      month,
      '2020-01',
      '2020-02',
      '2020-03',
      `${month}.0123456789abcdef`,
      `${month}.fedcba9876543210`,
    ];
    for (const name of months) forge(many, `${NOBODY}-${name}.jsonl`);
    forge('\n'.repeat(2 ** 25), `${NOBODY}-2020-04.jsonl`);
    const time = join(machine.directory, 'time');
    const { code } = await machine.run([python, '-c', MEASURE, time, process.execPath, command, 'report']);
    expect(code).toBe(0);
    const [seconds = 0, mebibytes = 0] = readFileSync(time, 'utf8').split(' ').map(Number);
    expect(mebibytes).toBeLessThan(250);
    expect(seconds).toBeLessThan(15);
  });

  test('leave a user a file whose names they have all taken', async () => {
    const uid = process.geteuid?.() ?? 0;
    const names = ['', ...Array.from({ length: 9 }, (_, i) => `.${i + 1}`), '.0123456789abcdef'];
    for (const name of names) forge('', `${uid}-${month}${name}.jsonl`);
    expect(await machine.runCommand(['run', 'true'])).toMatchObject({ code: 0, stderr: '' });
    expect(await machine.runCommand(['run', 'true'])).toMatchObject({ code: 0, stderr: '' });
    expect((await report()).rows.root).toMatchObject({ leases: 2 });
    expect(readdirSync(ledger)).toHaveLength(names.length + 1);
  });

  test('are no longer written beyond what reports read, with a warning to the user', async () => {
    const uid = process.geteuid?.() ?? 0;
    writeFileSync(join(ledger, `${uid}-${month}.jsonl`), line(HOUR).repeat(2 ** 25 / 301 + 1));
    const { code, stderr } = await machine.runCommand(['run', 'true']);
    expect(code).toBe(0);
    expect(stderr).toMatch(/isn't noted in the ledger, .*: your leases of this month take 32 MiB in /);
  });
});
