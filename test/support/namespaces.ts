// Hosts in network namespaces of their own: a network between them that can be cut, and, with netem in the kernel, is slow
// and loses packets.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { output } from './machine.ts';

const DELAY = ['delay', '50ms', 'loss', '2%'];

/** Why a test can't make such networks; null where it can. */
export function whyNoNetworks(): string | null {
  if (process.getuid?.() !== 0) return 'needs root, for network namespaces';
  const network = new Network(250);
  try {
    return network.make() ? null : 'network namespaces are not available';
  } finally {
    network.remove();
  }
}

/** A namespace, and a link to it. */
export class Network {
  readonly address: string;
  readonly #name: string;
  readonly #link: string;
  readonly #own: string;
  #sshd: ChildProcess | null = null;

  /** @param number the third part of its address; below 256 */
  constructor(number: number) {
    this.#name = `gpu-owner-${process.pid}-${number}`;
    this.#link = `go${process.pid % 100_000}n${number}`;
    // Tests of another checkout may run beside this one.
    const own = `10.${128 + (process.pid % 100)}.${number}`;
    this.#own = `${own}.1`;
    this.address = `${own}.2`;
  }

  /** @returns whether it was possible */
  make(): boolean {
    const inside = ['netns', 'exec', this.#name, 'ip'];
    const isMade = [
      ['ip', 'netns', 'add', this.#name],
      ['ip', 'link', 'add', this.#link, 'type', 'veth', 'peer', 'name', 'outside', 'netns', this.#name],
      ['ip', 'addr', 'add', `${this.#own}/24`, 'dev', this.#link],
      ['ip', 'link', 'set', this.#link, 'up'],
      ['ip', ...inside, 'addr', 'add', `${this.address}/24`, 'dev', 'outside'],
      ['ip', ...inside, 'link', 'set', 'outside', 'up'],
      ['ip', ...inside, 'link', 'set', 'lo', 'up'],
    ].every(([program = '', ...words]) => spawnSync(program, words).status === 0);
    // Some kernels can't slow it down.
    spawnSync('tc', ['qdisc', 'add', 'dev', this.#link, 'root', 'netem', ...DELAY]);
    return isMade;
  }

  /** Starts a sshd, in a machine that has just been booted: whatever logs in there sees a boot ID of its own. */
  async startSSHD(configuration: string): Promise<void> {
    if (this.#sshd?.kill('SIGKILL')) await once(this.#sshd, 'exit'); // its port is in use until then
    const boot = `${configuration}.boot`;
    writeFileSync(boot, `${randomUUID()}\n`);
    // `ip netns exec` has made a mount namespace.
    const script = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec /usr/sbin/sshd -D -e -f "$1"';
    const words = ['netns', 'exec', this.#name, 'sh', '-c', script, boot, configuration];
    this.#sshd = spawn('ip', words, { stdio: ['ignore', 'ignore', 'pipe'] });
    await output(this.#sshd, /Server listening/);
    this.#sshd.stderr?.resume();
  }

  /** Cuts the link, or heals it. */
  set(state: 'up' | 'down'): void {
    execFileSync('ip', ['link', 'set', this.#link, state]);
  }

  remove(): void {
    this.#sshd?.kill('SIGKILL');
    spawnSync('ip', ['netns', 'del', this.#name]);
    spawnSync('ip', ['link', 'del', this.#link]);
  }
}
