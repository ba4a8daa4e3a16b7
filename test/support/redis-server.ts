import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { freePort } from './ports.ts';
import { until } from './time.ts';

/** Another server, such as valkey-server, perhaps with its path. The command-line client is beside it. */
export const SERVER = process.env.GPU_OWNER_TEST_REDIS_SERVER || 'redis-server';
const CLIENT = SERVER.replace(/server(?=[^/]*$)/, 'cli');

/** The name of a queue on Redis, in its keys. */
export function queueName(project: string): string {
  return `${project}@${userInfo().username}`;
}

/** Why tests with a Redis are skipped; null: they aren't. */
export const noRedis = whyNoRedis();

function whyNoRedis(): string | null {
  if (spawnSync(SERVER, ['--version']).status === 0) return null;
  // A user who names a server wants the tests.
  if (SERVER !== 'redis-server') throw new Error(`GPU_OWNER_TEST_REDIS_SERVER: ${SERVER} can't be run`);
  return 'redis-server is not installed';
}

export interface ServerOptions {
  password?: string;
  tls?: boolean;
  /** Listens on a socket, and on no port. */
  unix?: boolean;
  /** More lines of redis.conf. */
  settings?: string[];
  /** On a machine of its own: its address, and how a program is started there. */
  host?: { address: string; words: (words: string[]) => string[] };
}

/**
 * Finds a directory in memory, if there is room: Redis waits for the disk, and a busy one makes it stand still for longer than its clients'
 * patience.
 */
function findDirectory(): string {
  const memory = '/dev/shm';
  if (!existsSync(memory)) return tmpdir();
  const { bavail, bsize } = statfsSync(memory);
  return bavail * bsize >= 2 ** 30 ? memory : tmpdir();
}

/** A Redis of the test's own, with a file that outlives it. */
export class RedisServer {
  readonly directory = mkdtempSync(join(findDirectory(), 'gpu-owner-redis-'));
  readonly port: number;
  readonly #options: ServerOptions;
  #child: ChildProcess | null = null;

  private constructor(port: number, options: ServerOptions) {
    this.port = port;
    this.#options = options;
  }

  static async start(options: ServerOptions = {}): Promise<RedisServer> {
    const server = new RedisServer(await freePort(), options);
    if (options.tls) server.#makeCertificates();
    await server.start();
    return server;
  }

  get socket(): string {
    return join(this.directory, 'redis.sock');
  }

  get certificate(): string {
    return join(this.directory, 'ca.crt');
  }

  /** @param query what comes behind `?` */
  url(query: string): string {
    const { password, tls, unix } = this.#options;
    if (unix) return `redis+unix://${this.socket}?${query}`;
    const user = password === undefined ? '' : `:${encodeURIComponent(password)}@`;
    const ca = tls ? `&ca=${encodeURIComponent(this.certificate)}` : '';
    return `redis${tls ? 's' : ''}://${user}${this.#address}:${this.port}/0?${query}${ca}`;
  }

  get #address(): string {
    return this.#options.host?.address ?? '127.0.0.1';
  }

  /** Again, after it was killed. */
  async start(): Promise<void> {
    const { password, tls, unix, host, settings = [] } = this.#options;
    const lines = [
      `dir ${this.directory}`,
      `bind ${this.#address}`,
      ...(host === undefined ? [] : ['protected-mode no']), // no other process is in its network
      'appendonly yes',
      'appendfsync always', // otherwise a busy disk lets it forget what it has acknowledged when it is killed
      'save ""',
      'loglevel warning',
      `unixsocket ${this.socket}`,
      tls || unix ? 'port 0' : `port ${this.port}`,
      ...(password === undefined ? [] : [`requirepass ${password}`]),
      ...(tls
        ? [
            `tls-port ${this.port}`,
            `tls-cert-file ${this.directory}/server.crt`,
            `tls-key-file ${this.directory}/server.key`,
            `tls-ca-cert-file ${this.certificate}`,
            'tls-auth-clients no',
          ]
        : []),
      ...settings,
    ];
    writeFileSync(join(this.directory, 'redis.conf'), `${lines.join('\n')}\n`);
    const words = [SERVER, join(this.directory, 'redis.conf')];
    const [program, ...args] = host === undefined ? words : host.words(words);
    const child = spawn(program as string, args, { stdio: 'ignore' });
    this.#child = child;
    await until(
      () => /PONG/.test(this.command('PING')),
      () => `${SERVER} to start (exit code ${child.exitCode})`,
    );
  }

  /** By redis-cli, which says what it heard. */
  command(...words: string[]): string {
    return this.#client(words, '');
  }

  /** Many that are answered by numbers, by one redis-cli. */
  commands(list: readonly (readonly string[])[]): void {
    const quoted = (word: string) => `"${Buffer.from(word).toString('hex').replace(/../g, '\\x$&')}"`;
    const answers = this.#client([], list.map((words) => `${words.map(quoted).join(' ')}\n`).join(''));
    const numbers = /^\d+\n/gm;
    if (answers.replace(numbers, '') !== '' || answers.match(numbers)?.length !== list.length)
      throw new Error(`redis-cli: ${answers}`);
  }

  #client(words: string[], input: string): string {
    const { password } = this.#options;
    const { stdout } = spawnSync(CLIENT, ['-s', this.socket, ...words], {
      encoding: 'utf8',
      env: { ...process.env, ...(password === undefined ? {} : { REDISCLI_AUTH: password }) },
      stdio: ['pipe', 'pipe', 'ignore'],
      input,
    });
    return stdout;
  }

  signal(name: NodeJS.Signals): void {
    this.#child?.kill(name);
  }

  async kill(name: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const child = this.#child;
    if (child === null) return;
    this.#child = null;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill(name);
    await ended;
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.directory, { recursive: true, force: true });
  }

  #makeCertificates(): void {
    const openssl = (...words: string[]) =>
      execFileSync('openssl', words, { cwd: this.directory, stdio: 'ignore' });
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
    openssl('req', '-x509', ...key, '-keyout', 'ca.key', '-out', 'ca.crt', '-days', '2', '-subj', '/CN=test');
    openssl('req', ...key, '-keyout', 'server.key', '-out', 'server.csr', '-subj', '/CN=127.0.0.1');
    writeFileSync(join(this.directory, 'names'), 'subjectAltName=IP:127.0.0.1,DNS:localhost\n');
    openssl('x509', '-req', '-in', 'server.csr', '-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial', '-out', 'server.crt', '-days', '2', '-extfile', 'names'); // biome-ignore format: one command
  }
}
