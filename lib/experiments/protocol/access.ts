import { timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { BlockList, isIP } from 'node:net';
import { endianness, networkInterfaces } from 'node:os';
import { GPUOwnerError } from '../../errors.ts';
import { errno, native } from '../../native.ts';
import {
  type Endpoint,
  formatEndpoint,
  invalidArgument,
  isLoopback,
  plainAddress,
  showValue,
  tokenDigest,
} from '../../platform/index.ts';

interface AuthenticationOptions {
  /** Clients at these addresses may do everything. */
  trust: BlockList;
  trusts: boolean;
  /** A secret; clients that send it may do everything. null: there is none. */
  token: string | null;
}

/** The client at the other end of a connection. */
export interface Client {
  /** A user of this machine, or an address: connections of one peer share a limit. */
  peer: string;
  /** Why the client may not connect; null: it may. */
  refusal: string | null;
}

/** Decides who may speak to the manager, which gives out work and takes results. */
export class Authentication {
  readonly #options: AuthenticationOptions;

  constructor(options: AuthenticationOptions) {
    this.#options = options;
  }

  get hasToken(): boolean {
    return this.#options.token !== null;
  }

  /** @throws ERR_INVALID_ARGUMENT if other machines could connect, but none of them may */
  check(endpoint: Endpoint): void {
    if (isLoopback(endpoint.host) || this.#options.trusts || this.hasToken) return;
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `--listen ${formatEndpoint(endpoint)}: other machines could connect there, but no machine is trusted. Add --trust with their addresses ` +
        '(--trust 192.168.1.0/24), or --token-file with a secret that they send',
    );
  }

  identify(ends: Ends): Client {
    const address = plainAddress(ends.remoteAddress);
    if (isIn(this.#options.trust, address)) return { peer: address, refusal: null };
    const token = this.hasToken ? ', nor is there the right token in the request' : '';
    if (!isLoopback(address) && !isOwn(address)) {
      return {
        peer: address,
        refusal: `${address} is not among the trusted addresses (--trust)${token}`,
      };
    }
    const uid = uidOfPeer(ends);
    const peer = uid === null ? address : `user ${uid}`;
    if (uid !== null && (uid === 0 || uid === process.getuid?.())) return { peer, refusal: null };
    const who = uid === null ? 'the user of the connection is unknown' : `user ${uid} is not the manager's`;
    const trust = `--trust ${isIP(address) === 6 ? '::1' : '127.0.0.1'} admits all users`;
    return {
      peer,
      refusal: `on this machine only the manager's user may connect, and ${who}${token}; ${trust}`,
    };
  }

  /** Whether a token is the secret. */
  knows(token: unknown): boolean {
    if (this.#options.token === null || typeof token !== 'string') return false;
    return timingSafeEqual(tokenDigest(token), tokenDigest(this.#options.token));
  }
}

/** Whether an address is one of this machine. */
function isOwn(address: string): boolean {
  return Object.values(networkInterfaces()).some((each) =>
    each?.some((own) => own.address === address.split('%')[0]),
  );
}

/** The addresses of both ends of a connection, as one of them sees it. */
export interface Ends {
  localAddress: string;
  localPort: number;
  remoteAddress: string;
  remotePort: number;
}

const TABLES = ['/proc/self/net/tcp', '/proc/self/net/tcp6'];
const WORD = 8;

/**
 * Finds the user whose process on this machine is at the other end. Takes some 20 µs, so many connections delay no other
 * client.
 * @param ends as this end sees them
 * @returns its user id; null: it can't be told, or no process has that socket open any longer
 */
function uidOfPeer(ends: Ends): number | null {
  const uid = native().peerUid(ends.localAddress, ends.localPort, ends.remoteAddress, ends.remotePort);
  if (uid >= 0) return uid;
  // Kernels without sock_diag, and sandboxes that deny it, may still list their sockets.
  return uid === -errno.ESRCH ? null : uidInTables(ends, TABLES);
}

/** Finds the user in the kernel's lists of sockets, which is slower. @param tables the paths of these lists */
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
      // Sockets that no process has open any longer are shown as root's, without an inode.
      if (theirs === undefined || ours === undefined || inode === undefined || inode === '0') continue;
      if (decodeEndpoint(theirs) === local && decodeEndpoint(ours) === remote) return Number(uid);
    }
  }
  return null;
}

/** Decodes `0100007F:1388` to `127.0.0.1 5000`: words in the machine's byte order. */
function decodeEndpoint(text: string): string {
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
  // The URL parser shortens an address that is written in full.
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}

/** @param texts addresses and networks such as 10.0.0.0/8 @throws ERR_INVALID_ARGUMENT */
export function parseNetworks(texts: readonly string[], option: string): BlockList {
  const networks = new BlockList();
  for (const text of texts.flatMap((each) => each.split(','))) {
    const [, address = '', digits] = /^\s*([^/\s]+)(?:\/(\d{1,3}))?\s*$/.exec(text) ?? [];
    const version = isIP(address);
    const widest = version === 6 ? 128 : 32;
    const prefix = digits === undefined ? widest : Number(digits);
    if (version === 0 || prefix > widest) {
      throw invalidArgument(
        `${option}: ${showValue(text)} is neither an address nor a network; use 192.168.1.7 or 10.0.0.0/8`,
      );
    }
    networks.addSubnet(address, prefix, version === 6 ? 'ipv6' : 'ipv4');
  }
  return networks;
}

function isIn(networks: BlockList, address: string): boolean {
  const plain = plainAddress(address);
  // A scope, as in fe80::1%eth0, is no part of the number.
  return networks.check(plain.split('%')[0] as string, isIP(plain) === 6 ? 'ipv6' : 'ipv4');
}
