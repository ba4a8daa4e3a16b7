import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { activityIn } from '../support/activity.ts';
import { type Machine, NOBODY, output, python, type Starting, until } from '../support/machine.ts';

export interface Request {
  name: string;
  count?: number;
  devices?: number[];
  hold?: number;
  maxWait?: number;
}

export const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
export const names = (text: string, word: string) =>
  [...text.matchAll(new RegExp(`^${word} (\\S+)`, 'gm'))].map(([, name]) => name);

/** The waiters of a machine. */
export class Waiters {
  readonly machine: Machine;
  readonly #witness = randomBytes(8).toString('hex');

  constructor(machine: Machine) {
    this.machine = machine;
  }

  get file(): string {
    return join(this.machine.lockDirectory, 'line.lock');
  }

  waiter(requests: Request[], starting: Starting = {}) {
    const texts = requests.map((request) => JSON.stringify({ hold: 0, ...request }));
    return this.machine.start([process.execPath, fixture('waiter.mjs'), this.#witness, ...texts], starting);
  }

  // biome-ignore lint/suspicious/noExplicitAny: the JSON of the command is what tests are about
  async queue(): Promise<any[]> {
    const { code, stdout, stderr } = await this.machine.runCommand(['queue', '--json']);
    if (code !== 0) throw new Error(stderr);
    return JSON.parse(stdout);
  }

  waiting() {
    return activityIn(this.machine.lockDirectory).waiting;
  }

  async untilWaiting(count: number): Promise<void> {
    await until(() => this.waiting().length === count);
  }

  /** Holds GPUs until its input is closed. */
  async holder(count: number, ...options: string[]) {
    const args = ['hold', '-n', String(count), '--placeholder', 'none', ...options];
    const child = this.machine.startCommand(args);
    await output(child, /visibleDevices/);
    return { child, release: () => child.stdin?.end() };
  }

  async fakeWaiter(count: number, uuids: string[], heartbeat = 'alive', place = 0, starting: Starting = {}) {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    // Before all others of its class.
    const order = `1 ${'0'.repeat(16)} ${'1'.padStart(16, '0')} ${'0'.repeat(16)} ${String(NOBODY - 7).padStart(10, '0')}`;
    const record = { order, user: 'mallory', pid: 1, place, count, uuids, scope: null, boot };
    const words = [fixture('fake_waiter.py'), this.file, String(place), JSON.stringify(record), heartbeat];
    const fake = this.machine.start([python, ...words], starting);
    await output(fake, /there/);
    return fake;
  }
}
