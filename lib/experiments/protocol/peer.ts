import { readFile } from 'node:fs/promises';
import { endianness } from 'node:os';
import { plainAddress } from './addresses.ts';

/** Both ends of a connection, as one of them sees it. */
export interface Ends {
  localAddress: string;
  localPort: number;
  remoteAddress: string;
  remotePort: number;
}

const TABLES = ['/proc/self/net/tcp', '/proc/self/net/tcp6'];
const WORD = 8;
/** The kernel may pass a socket over when others come and go while its list is read. */
const READINGS = 3;

/**
 * Whose process on this machine is at the other end. Sockets that nobody has open any longer are shown as root's, and don't count.
 * @param ends as this end sees them
 * @param tables where the kernel lists its sockets; others are for tests
 * @returns its user id; null: it can't be told
 */
export async function uidOfPeer(ends: Ends, tables: readonly string[] = TABLES): Promise<number | null> {
  const local = `${plainAddress(ends.remoteAddress)} ${ends.remotePort}`;
  const remote = `${plainAddress(ends.localAddress)} ${ends.localPort}`;
  const port = `:${ends.remotePort.toString(16).toUpperCase().padStart(4, '0')} `;
  for (let reading = 1; reading <= READINGS; reading++) {
    for (const line of await linesSince(tables)) {
      if (!line.includes(port)) continue;
      const [, theirs, ours, , , , , uid, , inode] = line.trim().split(/\s+/);
      if (theirs === undefined || ours === undefined || inode === undefined || inode === '0') continue;
      if (decode(theirs) === local && decode(ours) === remote) return Number(uid);
    }
  }
  return null;
}

/** Reading takes as long as there are sockets, so those who come meanwhile share the next reading. */
const readings = new Map<string, { current: Promise<string[]>; next: Promise<string[]> | null }>();

/** The lines of tables, as they are now or later. */
function linesSince(tables: readonly string[]): Promise<string[]> {
  const key = tables.join();
  const reading = readings.get(key);
  if (reading === undefined) return begin(key, tables);
  reading.next ??= reading.current.then(() => begin(key, tables));
  return reading.next;
}

function begin(key: string, tables: readonly string[]): Promise<string[]> {
  const reading = { current: read(tables), next: null };
  readings.set(key, reading);
  void reading.current.then(() => {
    if (readings.get(key) === reading && reading.next === null) readings.delete(key);
  });
  return reading.current;
}

/** Never rejects. */
async function read(tables: readonly string[]): Promise<string[]> {
  let lines: string[] = [];
  for (const table of tables) {
    try {
      lines = lines.concat((await readFile(table, 'latin1')).split('\n').slice(1));
    } catch {
      // No IPv6, or no /proc.
    }
  }
  return lines;
}

/** `0100007F:1388` is 127.0.0.1 5000: words of the machine's byte order. */
function decode(text: string): string {
  const [hex = '', port = ''] = text.split(':');
  const bytes: number[] = [];
  for (let at = 0; at < hex.length; at += WORD) {
    const word = Buffer.from(hex.slice(at, at + WORD), 'hex');
    bytes.push(...(endianness() === 'LE' ? word.reverse() : word));
  }
  return `${addressOf(bytes)} ${Number.parseInt(port, 16)}`;
}

function addressOf(bytes: readonly number[]): string {
  if (bytes.length === 4) return bytes.join('.');
  const isMapped = bytes.slice(0, 10).every((byte) => byte === 0) && bytes[10] === 255 && bytes[11] === 255;
  if (isMapped) return bytes.slice(12).join('.');
  const groups: string[] = [];
  for (let i = 0; i < 16; i += 2) {
    groups.push((((bytes[i] as number) << 8) | (bytes[i + 1] as number)).toString(16));
  }
  // As it is written in full; the URL parser knows how it is shortened.
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}
