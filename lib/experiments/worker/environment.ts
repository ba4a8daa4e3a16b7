import { createServer } from 'node:net';

/** What the command of an attempt finds beside its GPUs. */
export interface Given {
  /** Path of the JSON file that describes the task. */
  taskFile: string;
  /** Path where it may leave its result. */
  resultFile: string;
  /** What shows it its GPUs. */
  gpus: Readonly<Record<string, string>>;
  /** Where its processes may meet. */
  port: number;
}

/** The environment of a command: this process's own without passwords, and what is given to it. Some of that only where the user hasn't set it. */
export function environmentFor({ taskFile, resultFile, gpus, port }: Given): NodeJS.ProcessEnv {
  const { MASTER_ADDR, MASTER_PORT, PYTHONUNBUFFERED } = process.env;
  // Commands write their environment into logs and reports.
  const { GPU_OWNER_QUEUE_PASSWORD: _, GPU_OWNER_QUEUE: url, ...inherited } = process.env;
  const queue = url === undefined ? null : withoutSecret(url);
  return {
    ...inherited,
    ...(queue === null ? {} : { GPU_OWNER_QUEUE: queue }),
    ...gpus,
    GPU_OWNER_TASK: taskFile,
    GPU_OWNER_RESULT: resultFile,
    // Otherwise the log would come in large pieces, and not at all from a command that is killed.
    PYTHONUNBUFFERED: PYTHONUNBUFFERED ?? '1',
    // For frameworks that rendezvous there: two tasks at a time mustn't meet on the same default port.
    MASTER_ADDR: MASTER_ADDR ?? '127.0.0.1',
    MASTER_PORT: MASTER_PORT ?? String(port),
  };
}

/** null: where a password would be in it can't be told. */
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

/** PyTorch's own, for the case that no other can be had. */
const DEFAULT_PORT = 29_500;

/** A TCP port that nobody uses at the moment. Never rejected. */
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
