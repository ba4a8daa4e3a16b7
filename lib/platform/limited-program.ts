// Programs of the configuration that are told something: they get a text on standard input, and limited time.
import { errorCode } from '../errors.ts';
import { killGroup } from './processes.ts';
import { formatDuration } from './quantities.ts';

/** How long the output of a program is waited for that has ended: what it has started may have it open. In ms. */
const OUTPUT_MS = 500;
/** How much of a failed program's output is returned. */
const MAX_OUTPUT_LENGTH = 1_000;

/**
 * Runs a program in `/`, in a session of its own: with all that it starts there, it is killed when its time is up.
 * @param words of the program @param limitMs its time @returns why it failed, with what it printed; null: it did not
 */
export function runLimited(
  [program = '', ...args]: readonly string[],
  input: string,
  limitMs: number,
  user: { env: NodeJS.ProcessEnv; uid?: number; gid?: number },
): Promise<string | null> {
  const { spawn } = process.getBuiltinModule('node:child_process');
  return new Promise((resolve) => {
    let said = '';
    let isLate = false;
    let timer: NodeJS.Timeout | undefined;
    const done = (failure: string | null) => {
      clearTimeout(timer);
      resolve(failure && `${failure}${said === '' ? '' : `: ${said.trim()}`}`);
    };
    const refuse = (error: unknown) => done(`it can't be started (${errorCode(error)})`);
    const start = () => spawn(program, args, { cwd: '/', ...user, detached: true });
    let child: ReturnType<typeof start>;
    try {
      child = start();
    } catch (error) {
      return refuse(error); // Node.js throws some errors, such as ENOTDIR
    }
    const hear = (chunk: Buffer) => {
      said = (said + chunk.toString()).slice(0, MAX_OUTPUT_LENGTH);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.stdin.on('error', () => {}).end(input);
    child.on('error', refuse);
    child.on('exit', (code, signal) => {
      const how = signal === null ? `exit code ${code}` : `ended by ${signal}`;
      const failure = isLate ? `it took longer than ${formatDuration(limitMs)}` : code === 0 ? null : how;
      clearTimeout(timer);
      timer = setTimeout(done, OUTPUT_MS, failure);
      child.on('close', () => done(failure));
    });
    timer = setTimeout(() => {
      isLate = true;
      killGroup(child.pid, 'SIGKILL');
      timer = setTimeout(done, OUTPUT_MS, 'it cannot be ended');
    }, limitMs);
  });
}
