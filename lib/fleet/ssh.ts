// One ssh per question. It ends with its time, with too much output, and with this process however that ends.
import type { ChildProcess } from 'node:child_process';

/** How much a host may say; a machine with 16 GPUs and 1000 jobs says less than one MiB. */
const MAX_OUTPUT_BYTES = 16 * 1024 * 1024;
const MAX_ERROR_BYTES = 256 * 1024;
/** After its end: what ssh has left in the background may have its output open for days. */
const OUTPUT_TIMEOUT_MS = 1_000;

/** What the user's configuration may say of interactive sessions doesn't fit here. */
const OPTIONS = [
  '-T',
  '-n',
  '-a',
  '-x',
  ...['BatchMode=yes', 'ClearAllForwardings=yes', 'PermitLocalCommand=no', 'RemoteCommand=none'].flatMap(
    (option) => ['-o', option],
  ),
];

/**
 * Becomes ssh, beside a process that kills its group as soon as descriptor 3 is closed: when this process has died, be it by
 * kill -9. A line on it says that all is well. Then the group may live on: it has the proxies of connections that ssh keeps.
 */
const LEASHED = `{ read -r _ <&3 || kill -s KILL -- "-$$"; } </dev/null >/dev/null 2>&1 &
exec 3<&-
command -v "$1" >/dev/null 2>&1 || exit 254
exec "$@"`;
const NO_SSH = 254;

export interface SSHResult {
  /** null: it was killed. */
  exitCode: number | null;
  output: string;
  errors: string;
  /** Why it was cut short. */
  cut: 'time' | 'size' | 'no-ssh' | null;
}

/** What to run in place of `ssh`, for tests. */
export function sshProgram(env: NodeJS.ProcessEnv = process.env): string {
  return env.GPU_OWNER_SSH || 'ssh';
}

/**
 * Runs a command line on a host. Never throws.
 * @param isWhole whether the output is known to be complete
 */
export function runOverSSH(
  host: string,
  commandLine: string,
  timeoutMs: number,
  isWhole: (output: string, errors: string) => boolean,
): Promise<SSHResult> {
  const { spawn } = process.getBuiltinModule('node:child_process');
  return new Promise((resolve) => {
    const words = ['-c', LEASHED, 'sh', sshProgram(), ...OPTIONS, '--', host, commandLine];
    const ssh = spawn('/bin/sh', words, {
      // A session of its own: nothing can ask on the terminal, and Ctrl-C reaches it through this process only.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
      env: { ...process.env, LC_ALL: 'C' },
    });
    const output = new Collected();
    const errors = new Collected();
    let cut: SSHResult['cut'] = null;
    let code: number | null = null;
    let isOver = false;
    let afterEnd: NodeJS.Timeout | undefined;

    const stop = (why: SSHResult['cut']) => {
      cut ??= why;
      killGroup(ssh);
      finish();
    };
    const timer = setTimeout(() => stop('time'), timeoutMs);
    const finish = () => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      clearTimeout(afterEnd);
      releaseStreams(ssh);
      const isMissing = code === NO_SSH && output.bytes === 0 && errors.bytes === 0;
      if (isMissing) cut ??= 'no-ssh';
      resolve({ exitCode: code, output: output.text(), errors: errors.text(), cut });
    };
    const finishIfWhole = () => {
      if (code !== null && isWhole(output.text(), errors.text())) finish();
    };
    ssh.stdout?.on('data', (chunk: Buffer) => {
      if (isOver) return;
      if (output.bytes + chunk.length > MAX_OUTPUT_BYTES) return stop('size');
      output.add(chunk);
      if (code !== null) finishIfWhole();
    });
    ssh.stderr?.on('data', (chunk: Buffer) => {
      if (isOver || errors.bytes > MAX_ERROR_BYTES) return;
      errors.add(chunk);
      if (code !== null) finishIfWhole();
    });
    for (const stream of ssh.stdio) stream?.on('error', () => {});
    ssh.once('error', () => stop('no-ssh'));
    ssh.once('exit', (exitCode) => {
      if (isOver) return;
      clearTimeout(timer);
      code = exitCode ?? 255;
      // What has arrived meanwhile is read between a timer and an immediate.
      afterEnd = setTimeout(() => setImmediate(finish), OUTPUT_TIMEOUT_MS);
      finishIfWhole();
    });
    ssh.once('close', finish);
  });
}

class Collected {
  readonly #chunks: Buffer[] = [];
  bytes = 0;

  add(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.bytes += chunk.length;
  }

  text(): string {
    return Buffer.concat(this.#chunks).toString('utf8');
  }
}

function killGroup({ pid }: ChildProcess): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

/** Lets the process beside ssh go, and keeps nothing open. */
function releaseStreams(ssh: ChildProcess): void {
  const leash = ssh.stdio[3] as NodeJS.WritableStream | null | undefined;
  leash?.end('\n');
  ssh.stdout?.destroy();
  ssh.stderr?.destroy();
}
