// Machines with a network between them that can be cut: network namespaces on a bridge. The machines share the disk, and the
// witnesses.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pause } from '../support/machine.ts';
import { sendSignal } from '../support/processes.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';
import { type RedisOutcomes, redisOutcomes } from './redis-assertions.ts';
import { WitnessedExperiment } from './witnessed.ts';

const NAMESPACES = '/run/netns';
const PREFIX = 'gpu-owner-test';
/** No other network is in these namespaces. */
const address = (number: number) => `10.77.0.${number + 1}`;
const PROJECT = 'sweep';

/** Why there can't be a cluster here; null: there can. */
export const noCluster: string | null = noRedis ?? whyNot();

function whyNot(): string | null {
  if (process.getuid?.() !== 0) return 'needs root, to make network namespaces';
  if (spawnSync('ip', ['-V']).status !== 0) return 'ip (iproute2) is not installed';
  const name = `${PREFIX}-${process.pid}-0`;
  const { status, stderr } = spawnSync('ip', ['netns', 'add', name], { encoding: 'utf8' });
  if (status !== 0) return `no network namespaces can be made: ${stderr.trim()}`;
  const bridge = spawnSync('ip', ['-n', name, 'link', 'add', 'lan', 'type', 'bridge'], { encoding: 'utf8' });
  ip('netns', 'delete', name);
  return bridge.status === 0 ? null : `no bridge can be made: ${bridge.stderr.trim()}`;
}

function ip(...words: string[]): void {
  const { status, stderr } = spawnSync('ip', words, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`ip ${words.join(' ')}: ${stderr}`);
}

/** down: as a cable that is pulled out, which its ends notice. silence: as a switch that swallows everything. */
export type Cut = 'down' | 'silence';

/** A machine of the cluster: GPUs, a lock directory, a project and a network of its own. */
export class Host {
  readonly name: string;
  readonly experiment: WitnessedExperiment;
  readonly #cluster: Cluster;
  readonly #number: number;
  #cut: Cut | null = null;

  constructor(cluster: Cluster, number: number, gpus: number, queue: string, seed: number) {
    this.#cluster = cluster;
    this.#number = number;
    this.name = `m${number}`;
    this.experiment = new WitnessedExperiment(gpus, {
      seed,
      queue: { url: queue, outcomes: () => cluster.outcomes() },
      host: { name: this.name, witness: cluster.witness, words: (words) => cluster.words(number, words) },
    });
  }

  cut(how: Cut): void {
    this.#cut = how;
    this.#port(how === 'down' ? ['down'] : ['nomaster']);
  }

  mend(): void {
    if (this.#cut !== null) this.#port(this.#cut === 'down' ? ['up'] : ['master', 'lan']);
    this.#cut = null;
  }

  /** As a power cut: no process of the machine can do anything any more. */
  async die(): Promise<void> {
    this.cut('silence');
    const everybody = (): number[] => this.#cluster.pids(this.#number);
    for (const signal of ['SIGSTOP', 'SIGKILL'] as const) {
      for (const pid of everybody()) sendSignal(pid, signal);
    }
    while (everybody().length > 0) {
      for (const pid of everybody()) sendSignal(pid, 'SIGKILL');
      await pause(5);
    }
  }

  #port(words: string[]): void {
    ip('-n', this.#cluster.namespace('lan'), 'link', 'set', `port${this.#number}`, ...words);
  }
}

let made = 0;

/** Several machines with a Redis on another one. */
export class Cluster {
  readonly directory = mkdtempSync(join(tmpdir(), 'gpu-owner-cluster-'));
  readonly witness = join(this.directory, 'witness');
  readonly hosts: Host[] = [];
  readonly #prefix = `${PREFIX}-${process.pid}-${++made}`;
  #server: RedisServer | null = null;

  /** @param query of the queue's URL, beside the project */
  static async start(machines: number, gpus: number, query = '', seed = 0): Promise<Cluster> {
    const cluster = new Cluster();
    try {
      removeLeftovers();
      await cluster.#build(machines, gpus, query, seed);
      return cluster;
    } catch (error) {
      await cluster.close();
      throw error;
    }
  }

  get server(): RedisServer {
    return this.#server as RedisServer;
  }

  outcomes(): RedisOutcomes {
    return redisOutcomes(this.server, PROJECT);
  }

  /** Processes that were started there, and theirs. */
  pids(number: number): number[] {
    const { stdout } = spawnSync('ip', ['netns', 'pids', this.namespace(number)], { encoding: 'utf8' });
    return stdout.split('\n').filter(Boolean).map(Number);
  }

  words(number: number, words: string[]): string[] {
    const named = ['unshare', '--uts', 'sh', '-c', `hostname machine${number} && exec "$@"`, 'sh'];
    return ['ip', 'netns', 'exec', this.namespace(number), ...named, ...words];
  }

  namespace(name: string | number): string {
    return `${this.#prefix}-${name}`;
  }

  async #build(machines: number, gpus: number, query: string, seed: number): Promise<void> {
    const lan = this.namespace('lan');
    ip('netns', 'add', lan);
    ip('-n', lan, 'link', 'add', 'lan', 'type', 'bridge');
    ip('-n', lan, 'link', 'set', 'lan', 'up');
    for (let number = 0; number <= machines; number++) {
      const name = this.namespace(number);
      const port = `port${number}`;
      ip('netns', 'add', name);
      ip('-n', name, 'link', 'set', 'lo', 'up');
      ip('-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', port, 'netns', lan);
      ip('-n', name, 'address', 'add', `${address(number)}/24`, 'dev', 'eth0');
      ip('-n', name, 'link', 'set', 'eth0', 'up');
      ip('-n', lan, 'link', 'set', port, 'master', 'lan', 'up');
    }
    const host = { address: address(0), words: (words: string[]) => this.words(0, words) };
    this.#server = await RedisServer.start({ host });
    const url = this.server.url(`project=${PROJECT}${query === '' ? '' : `&${query}`}`);
    for (let number = 1; number <= machines; number++) {
      this.hosts.push(new Host(this, number, gpus, url, seed));
    }
  }

  /** Ends whatever of it there is. */
  async close(): Promise<void> {
    for (const { experiment } of this.hosts) await experiment.close();
    await this.#server?.remove();
    removeNamespaces((name) => name.startsWith(`${this.#prefix}-`));
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** Removes namespaces of test processes that were killed. */
function removeLeftovers(): void {
  removeNamespaces((name) => {
    const [, pid] = new RegExp(`^${PREFIX}-(\\d+)-`).exec(name) ?? [];
    if (pid === undefined) return false;
    return !existsSync(`/proc/${pid}`) || !/node|vitest/.test(readFileSync(`/proc/${pid}/comm`, 'latin1'));
  });
}

function removeNamespaces(which: (name: string) => boolean): void {
  if (!existsSync(NAMESPACES)) return;
  for (const name of readdirSync(NAMESPACES).filter(which)) {
    const { stdout } = spawnSync('ip', ['netns', 'pids', name], { encoding: 'utf8' });
    for (const pid of stdout.split('\n').filter(Boolean)) sendSignal(Number(pid), 'SIGKILL');
    spawnSync('ip', ['netns', 'delete', name]);
  }
}
