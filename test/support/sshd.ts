// Hosts for tests that are asked over ssh: one real sshd of this test's own, which a name of ~/.ssh/config reaches with a key of its own.
// The key decides on the script that a login runs, and so on the machine, the shell and the home that it finds.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { launcher, Machine, output, root, until } from './machine.ts';
import type { Network } from './namespaces.ts';
import { freePort } from './ports.ts';
import { processesWith, signalAll } from './processes.ts';

const SSHD = '/usr/sbin/sshd';

/** Why a test that needs sshd is skipped; null where it isn't. */
export function whyNoSSHD(): string | null {
  if (!existsSync(SSHD)) return 'sshd is not installed (openssh-server)';
  return spawnSync('ssh', ['-V']).error === undefined ? null : 'ssh is not installed (openssh-client)';
}

interface HostSettings {
  /** The login shell (default: bash). */
  shell?: string;
  /** The GPUs there (default: 2). */
  gpus?: number | string;
  /** The program in PATH there by the name of gpu-owner, as a script; null: none (default: gpu-owner, but for `--version`). */
  program?: string | null;
  /** Files of the home there. */
  files?: Record<string, string>;
  /** More lines of its part of ~/.ssh/config. */
  config?: readonly string[];
}

/** The program of a host in which all is gpu-owner. */
export const GPU_OWNER = `exec ${process.execPath} ${launcher} "$@"`;
/** Hosts are asked for their version before each question: a shell answers it without a start of Node.js. */
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const VERSION_APART = `case $1 in --version) echo ${version};; *) ${GPU_OWNER};; esac`;

/** Standard error without the lines about hosts that answer late, as they do on a busy machine. */
export function withoutDelays(stderr: string): string {
  return stderr.replace(/^gpu-owner: waiting for an answer of .*\n/gm, '');
}

export class Hosts {
  /** The side that looks: it has no GPU. */
  readonly viewer = new Machine('none');
  readonly machines: Machine[] = [];
  readonly port: number;
  readonly #sshd: ChildProcess;
  /** How many there were, as sshd says. */
  logins = 0;

  private constructor(port: number, sshd: ChildProcess) {
    this.port = port;
    this.#sshd = sshd;
  }

  static async start(): Promise<Hosts> {
    const port = await freePort();
    // As root, sshd insists on it; the package makes it when the machine starts.
    if (process.getuid?.() === 0) mkdirSync('/run/sshd', { recursive: true, mode: 0o755 });
    const holder: { hosts?: Hosts } = {};
    const place = new Machine('sshd');
    makeKey(join(place.directory, 'host-key'));
    const config = [
      `Port ${port}`,
      'ListenAddress 127.0.0.1',
      `HostKey ${join(place.directory, 'host-key')}`,
      `AuthorizedKeysFile ${join(place.directory, 'authorized-keys')}`,
      `PidFile none`,
      'PasswordAuthentication yes',
      'KbdInteractiveAuthentication no',
      'UsePAM no',
      'StrictModes no',
      'MaxStartups 1000',
      'PermitRootLogin yes',
      'PermitUserEnvironment yes',
      // The login shell that starts a login's script reads no .bashrc of the user who runs the tests.
      `SetEnv HOME=${place.directory}`,
      'Subsystem sftp internal-sftp',
    ];
    writeFileSync(join(place.directory, 'sshd-config'), `${config.join('\n')}\n`);
    writeFileSync(join(place.directory, 'authorized-keys'), '');
    const sshd = spawn(SSHD, ['-D', '-e', '-f', join(place.directory, 'sshd-config')], {
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    await output(sshd, /Server listening/);
    holder.hosts = new Hosts(port, sshd);
    const { hosts } = holder;
    sshd.stderr?.on('data', (text: Buffer) => {
      hosts.logins += text.toString().match(/Accepted publickey/g)?.length ?? 0;
    });
    holder.hosts.machines.push(place);
    holder.hosts.#prepareViewer();
    return holder.hosts;
  }

  get #place(): string {
    return (this.machines[0] as Machine).directory;
  }

  #prepareViewer(): void {
    const hostKey = readFileSync(join(this.#place, 'host-key.pub'), 'utf8').trim();
    writeFileSync(join(this.#place, 'known-hosts'), `[127.0.0.1]:${this.port} ${hostKey}\n`);
    writeFileSync(this.configuration, '');
    this.#script('ssh', `exec ssh -F ${this.configuration} "$@"`);
  }

  #script(name: string, text: string): string {
    const path = join(this.#place, name);
    writeFileSync(path, `#!/bin/sh\n${text}\n`);
    chmodSync(path, 0o755);
    return path;
  }

  /** Adds a host with a machine of its own. */
  add(name: string, settings: HostSettings = {}): Machine {
    const { shell = 'bash', gpus = 2, program = VERSION_APART } = settings;
    const machine = new Machine(gpus);
    this.machines.push(machine);
    const home = join(machine.directory, 'home');
    const bin = join(machine.directory, 'bin');
    for (const directory of [home, bin]) mkdirSync(directory);
    for (const [path, text] of Object.entries(settings.files ?? {})) {
      mkdirSync(join(home, path, '..'), { recursive: true });
      writeFileSync(join(home, path), text, { mode: 0o755 });
    }
    if (program !== null) writeFileSync(join(bin, 'gpu-owner'), `#!/bin/sh\n${program}\n`, { mode: 0o755 });
    const env = {
      HOME: home,
      PATH: `${bin}:/usr/local/bin:/usr/bin:/bin`,
      SSH_CLIENT: '127.0.0.1 1 1',
      SSH_CONNECTION: '127.0.0.1 1 127.0.0.1 1',
      ...Object.fromEntries(
        Object.entries(machine.env).filter(
          ([key, value]) => value !== undefined && /^(?:GPU_OWNER|XDG)_/.test(key),
        ),
      ),
    };
    const words = Object.entries(env).map(([key, value]) => `'${key}=${value}'`);
    const login = `exec ${shell} -c "$SSH_ORIGINAL_COMMAND"`;
    writeFileSync(join(machine.directory, 'login'), login);
    const script = this.#script(
      `login-${name}`,
      `exec env -i ${words.join(' ')} "SSH_ORIGINAL_COMMAND=$SSH_ORIGINAL_COMMAND" sh ${join(machine.directory, 'login')}`,
    );
    const key = join(this.#place, `key-${name}`);
    makeKey(key);
    const authorized = `command="${script}" ${readFileSync(`${key}.pub`, 'utf8')}`;
    appendFileSync(join(this.#place, 'authorized-keys'), authorized);
    this.addName(name, [`IdentityFile ${key}`, ...(settings.config ?? [])]);
    return machine;
  }

  /** Adds a host behind a network of its own: a sshd there has the same key. */
  async addAway(name: string, network: Network, settings: HostSettings = {}): Promise<Machine> {
    const path = join(this.#place, `sshd-config-${name}`);
    const here = readFileSync(join(this.#place, 'sshd-config'), 'utf8');
    writeFileSync(path, here.replace('ListenAddress 127.0.0.1', `ListenAddress ${network.address}`));
    await network.startSSHD(path);
    const config = [
      `HostName ${network.address}`,
      `HostKeyAlias [127.0.0.1]:${this.port}`,
      'ServerAliveInterval 2',
    ];
    return this.add(name, { ...settings, config: [...config, ...(settings.config ?? [])] });
  }

  /** Reboots a host that was added away: all its processes end at once. @param keepsJobs whether its state directory outlives that */
  async reboot(name: string, network: Network, machine: Machine, keepsJobs: boolean): Promise<void> {
    const { directory, env } = machine;
    const living = () => processesWith(`HOME=${directory}/home`);
    await until(() => {
      signalAll(living(), 'SIGKILL');
      return living().length === 0;
    });
    if (!keepsJobs) rmSync(join(env.XDG_STATE_HOME as string, 'gpu-owner'), { recursive: true });
    await network.startSSHD(join(this.#place, `sshd-config-${name}`));
  }

  /** Adds a name of ~/.ssh/config. The first entry counts. */
  addName(name: string, lines: readonly string[] = []): void {
    const all = [
      ...lines,
      'HostName 127.0.0.1',
      `Port ${this.port}`,
      `User ${userInfo().username}`,
      'IdentitiesOnly yes',
      // OpenSSH's first choice takes ten times the processor time.
      'KexAlgorithms curve25519-sha256',
      'IdentityAgent none',
      `UserKnownHostsFile ${join(this.#place, 'known-hosts')}`,
      'StrictHostKeyChecking yes',
      'LogLevel ERROR',
    ];
    const text = [`Host ${name}`, ...all.map((line) => `  ${line}`), ''].join('\n');
    appendFileSync(this.configuration, text);
  }

  /** The file that stands for ~/.ssh/config. */
  get configuration(): string {
    return join(this.#place, 'ssh-config');
  }

  /** The environment of the side that looks: nothing of NVIDIA's, and no addon. */
  get env(): Record<string, string | undefined> {
    return {
      GPU_OWNER_SSH: join(this.#place, 'ssh'),
      GPU_OWNER_SIMULATE: undefined,
      GPU_OWNER_SIMULATE_DIR: undefined,
      GPU_OWNER_BUILD: '/nonexistent',
      // Logins take long on a busy machine.
      GPU_OWNER_TIMEOUTS: 'slowHost:60000',
    };
  }

  /** Writes the configuration of the side that looks. */
  configure(text: string): Record<string, string | undefined> {
    const directory = join(this.#place, 'config');
    mkdirSync(join(directory, 'gpu-owner'), { recursive: true });
    writeFileSync(join(directory, 'gpu-owner/config.yaml'), text);
    return { ...this.env, XDG_CONFIG_HOME: directory };
  }

  /** Runs the command on the side that looks. */
  run(args: string[], env = this.env) {
    return this.viewer.runCommand(args, { env });
  }

  async close(): Promise<void> {
    this.#sshd.kill('SIGKILL');
    // Logins are children of sshd, not of the machines.
    for (const { directory } of this.machines) signalAll(processesWith(`HOME=${directory}/home`), 'SIGKILL');
    for (const machine of [this.viewer, ...this.machines]) await machine.close();
  }
}

function makeKey(path: string): void {
  execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', 'test', '-f', path]);
}
