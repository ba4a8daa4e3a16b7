import { readFileSync } from 'node:fs';
import { createServer } from 'node:net';

/** Below the ports that the kernel gives to connections (ip_local_port_range): those may take the port of a server that is away. */
const [FIRST, LAST] = [15_000, 32_000];

/** Finds a TCP port of 127.0.0.1 that no process uses now, nor will by chance. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST + Math.floor(Math.random() * (LAST - FIRST));
    if (await isFree(port)) return port;
  }
}

/** Connections that a server of 127.0.0.1 has at this port (proc(5): 01 is ESTABLISHED). */
export function connectionsTo(port: number): number {
  const local = `0100007F:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  return readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, address, , state]) => address === local && state === '01').length;
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(false) : reject(error),
    );
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
