// Since when a GPU does nothing: what looks say, and what a forged note can do.
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { nextLook } from '../../lib/claims/idle.ts';
import { startHolder } from '../support/holders.ts';
import { command, Machine, pause, until, uuidOf } from '../support/machine.ts';

describe('a look', () => {
  const seen = (at: number, energy: number | null, changes = {}) => ({
    at,
    energy,
    utilization: 0,
    isUsed: true,
    limit: 700,
    ...changes,
  });

  test('tells by the mean power since the one before', () => {
    const first = nextLook(null, seen(0, 1_000));
    expect(first).toMatchObject({ since: null, looks: 1 });
    // 100 W in ten minutes
    const second = nextLook(first, seen(600_000, 61_000));
    expect(second).toMatchObject({ since: 0, looks: 2 });
    const third = nextLook(second, seen(1_200_000, 121_000));
    expect(third).toMatchObject({ since: 0, looks: 3, used: { lowest: 100 }, free: { lowest: null } });
    // The GPU computed in between, and does nothing just now: 136 W is more than 1.3 times 100 W, and 5 W.
    expect(nextLook(third, seen(1_800_000, 121_000 + 600 * 136))).toMatchObject({ since: null, looks: 1 });
    expect(nextLook(third, seen(1_800_000, 181_000, { utilization: 7 }))).toMatchObject({
      since: null,
      looks: 0,
    });
  });

  /** The mean powers between looks at intervals of 10 s. */
  const watch = (...watts: number[]) => {
    let look = nextLook(null, seen(0, 0));
    let energy = 0;
    for (const [i, each] of watts.entries()) {
      energy += each * 10;
      look = nextLook(look, seen((i + 1) * 10_000, energy));
    }
    return look;
  };

  test('with far too little energy changes nothing, unless the next one says the same', () => {
    expect(watch(76, 76, 34.8, 76)).toMatchObject({ since: 0, looks: 5, used: { lowest: 76 } });
    expect(watch(76, 76, 34.8, 76, 34.8, 76)).toMatchObject({ since: 0, looks: 7 });
    expect(watch(34.8, 76, 76, 76)).toMatchObject({ since: 0, looks: 5, used: { lowest: 76 } });
    expect(watch(76, 76, 34.8, 34.8, 76)).toMatchObject({ since: null, looks: 1, used: { lowest: 34.8 } });
  });

  test('takes a quarter of the limit for the bound as long as nothing better is known', () => {
    const first = nextLook(null, seen(0, 0));
    expect(nextLook(first, seen(10_000, 1_740)).since).toBe(0);
    expect(nextLook(first, seen(10_000, 1_760)).since).toBeNull();
    expect(nextLook(first, seen(10_000, 100, { limit: null })).since).toBeNull();
  });

  test('without a counter, and with one that restarts, counts snapshots', () => {
    const first = nextLook(null, seen(0, null));
    expect(nextLook(first, seen(10_000, null))).toMatchObject({ since: null, looks: 2 });
    expect(nextLook(nextLook(null, seen(0, 5_000)), seen(10_000, 10))).toMatchObject({
      since: null,
      looks: 2,
    });
  });
});

/** A command whose boot clock is ahead, also where the machine has just started. */
const halfAnHourLater = (words: string[]) => ['unshare', '--time', '--boottime', '1800', ...words];
const canMoveClock = spawnSync('unshare', halfAnHourLater(['true']).slice(1)).status === 0;

describe('on a machine', () => {
  let machine: Machine;
  beforeEach(async () => {
    machine = new Machine('2');
    await machine.runCommand(['run', '--', 'true']); // makes the lock directory
  });
  afterEach(() => machine.close());

  const idle = async (gpu: number) => (await machine.status())[gpu].idle;

  test('a leased GPU that does nothing is shown, and one that works is not', async () => {
    const sleeper = await startHolder(machine);
    const first = (await machine.status())[0].lease.since;
    await until(async () => (await idle(0))?.since != null);
    expect(Date.parse((await idle(0)).since)).toBeGreaterThan(Date.parse(first) - 60_000);
    machine.set('gpu=0', 'utilization=50');
    expect(await idle(0)).toBeNull();
    sleeper.kill();
  });

  test.skipIf(!canMoveClock)(
    'half an hour later, a GPU is idle for half an hour [needs a time namespace]',
    async () => {
      const later = () => machine.run(halfAnHourLater([process.execPath, command, 'status']));
      await startHolder(machine);
      await until(async () => (await idle(0))?.since != null);
      // Counted from the lease, whose time is that of the calendar: the clock of the looks is half an hour ahead.
      const lease = join(machine.lockDirectory, `${uuidOf(0)}.lease`);
      const since = new Date(Date.now() - 1_700_000).toISOString();
      writeFileSync(lease, readFileSync(lease, 'utf8').replace(/"since":"[^"]*"/, `"since":"${since}"`));
      expect((await later()).stdout).toMatch(/leased by .*,\s+idle\s+for\s+28\s+min/s);
      machine.set('gpu=0', 'utilization=50');
      expect((await later()).stdout).not.toMatch(/idle for/);
    },
  );

  test('work between two looks counts, although there is none at either', async () => {
    await until(async () => (await idle(0))?.since != null);
    machine.set('gpu=0', 'utilization=100');
    await pause(2_000);
    machine.set('gpu=0', 'utilization=default');
    // One look: the next may find that nothing was done since this one.
    expect((await machine.status())[0]).toMatchObject({ utilizationPercent: 0, idle: null });
  });

  test('a GPU without an energy counter is idle after several snapshots', async () => {
    machine.set('gpu=0', 'unsupported=energy');
    await machine.status();
    await until(async () => (await idle(0)).looks >= 2);
    expect((await idle(0)).since).toBeNull();
  });

  test('a note that makes no sense changes nothing but itself', async () => {
    await machine.status();
    const path = join(machine.lockDirectory, `${uuidOf(0)}.look`);
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    for (const text of [
      '',
      '{"boot":',
      '{"boot":"BOOT","at":"x","energy":{},"since":[],"looks":-1}',
      '{"boot":"BOOT","at":1e300,"energy":0,"since":0,"looks":1}',
      '{"boot":"BOOT","at":10,"energy":1,"since":1000000000000,"looks":9007199254740993}',
    ]) {
      writeFileSync(path, text.replace('BOOT', boot).padEnd(4096));
      const { code, stderr } = await machine.runCommand(['run', '-n2', '--', 'true']);
      expect({ text, code, stderr }).toEqual({ text, code: 0, stderr: '' });
    }
    expect(await machine.states()).toEqual(['free', 'free']);
  });
});
