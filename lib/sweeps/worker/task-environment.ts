import { createServer } from 'node:net';
import type { AttemptFiles } from './attempt-files.ts';

/**
 * The environment of a command: this process's own without passwords, and the task's. Some variables are set only if the user hasn't.
 * @param gpus variables that show it its GPUs @param port where its processes may meet
 */
export function environmentFor(
  { task, result, progress }: AttemptFiles,
  gpus: Readonly<Record<string, string>>,
  port: number,
): NodeJS.ProcessEnv {
  const { MASTER_ADDR, MASTER_PORT, PYTHONUNBUFFERED } = process.env;
  // Commands write their environment into logs and reports.
  const { GPU_OWNER_QUEUE_PASSWORD: _, GPU_OWNER_QUEUE: url, ...inherited } = process.env;
  const queue = url === undefined ? null : withoutSecret(url);
  return {
    ...inherited,
    ...(queue === null ? {} : { GPU_OWNER_QUEUE: queue }),
    ...gpus,
    GPU_OWNER_TASK: task,
    GPU_OWNER_RESULT: result,
    GPU_OWNER_PROGRESS: progress,
    // Otherwise the log would come in large pieces, and not at all from a command that is killed.
    PYTHONUNBUFFERED: PYTHONUNBUFFERED ?? '1',
    // For frameworks that rendezvous there: two tasks at a time mustn't meet on the same default port.
    MASTER_ADDR: MASTER_ADDR ?? '127.0.0.1',
    MASTER_PORT: MASTER_PORT ?? String(port),
  };
}

/** Removes the password from a URL. null: it isn't known where the password would be. */
function withoutSecret(url: string): string | null {
  if (!url.includes('@')) return url;
  try {
    const parsed = new URL(url);
    if (parsed.password === '') return url;
    parsed.password = '';
    return parsed.href;
  } catch {
    return null;
  }
}

/** PyTorch's default, for the case that no free port is found. */
const DEFAULT_PORT = 29_500;

/** Finds a free TCP port. Never rejects. */
export function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(DEFAULT_PORT));
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() =>
        resolve(typeof address === 'object' && address !== null ? address.port : DEFAULT_PORT),
      );
    });
  });
}
