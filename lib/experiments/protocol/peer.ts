import { readFileSync } from 'node:fs';
import { endianness } from 'node:os';
import { errno, native } from '../../native.ts';
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

/**
 * Whose process on this machine is at the other end. Takes some 20 µs, so whoever opens many connections keeps nobody waiting.
 * @param ends as this end sees them
 * @returns its user id; null: it can't be told, or nobody has that socket open any longer
 */
export function uidOfPeer(ends: Ends): number | null {
  const uid = native().peerUid(ends.localAddress, ends.localPort, ends.remoteAddress, ends.remotePort);
  if (uid >= 0) return uid;
  // Kernels without sock_diag, and sandboxes that deny it, may still list their sockets.
  return uid === -errno.ESRCH ? null : uidInTables(ends, TABLES);
}

/** As {@link uidOfPeer}, from the kernel's lists, which takes as long as there are sockets. @param tables where they are */
export function uidInTables(ends: Ends, tables: readonly string[]): number | null {
  const local = `${plainAddress(ends.remoteAddress)} ${ends.remotePort}`;
  const remote = `${plainAddress(ends.localAddress)} ${ends.localPort}`;
  const port = `:${ends.remotePort.toString(16).toUpperCase().padStart(4, '0')} `;
  for (const table of tables) {
    let lines: string[];
    try {
      lines = readFileSync(table, 'latin1').split('\n');
    } catch {
      continue; // no IPv6, or no /proc
    }
    for (const line of lines) {
      if (!line.includes(port)) continue;
      const [, theirs, ours, , , , , uid, , inode] = line.trim().split(/\s+/);
      // Sockets that nobody has open any longer are shown as root's, without an inode.
      if (theirs === undefined || ours === undefined || inode === undefined || inode === '0') continue;
      if (decode(theirs) === local && decode(ours) === remote) return Number(uid);
    }
  }
  return null;
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
