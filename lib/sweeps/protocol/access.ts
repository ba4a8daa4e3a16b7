import { timingSafeEqual } from 'node:crypto';
import { BlockList, isIP } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { native } from '../../native.ts';
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
    if (isLoopback(endpoint.host) || this.#options.trust.rules.length > 0 || this.hasToken) return;
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `--listen ${formatEndpoint(endpoint)}: other machines could connect there, but no machine is trusted. Add --trust with their addresses ` +
        '(--trust 192.168.1.7,192.168.1.8), or --token-file with a secret that they send',
    );
  }

  identify(ends: Ends): Client {
    const address = plainAddress(ends.remoteAddress);
    if (isIn(this.#options.trust, address)) return { peer: address, refusal: null };
    const token = this.hasToken ? ', nor is there the right token in the request' : '';
    if (!isLoopback(address)) {
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

/** The addresses of both ends of a connection, as one of them sees it. */
export interface Ends {
  localAddress: string;
  localPort: number;
  remoteAddress: string;
  remotePort: number;
}

/**
 * Finds the user whose process on this machine is at the other end. Takes some 20 µs, so many connections delay no other
 * client.
 * @param ends as this end sees them
 * @returns its user id; null: no process has that socket open any longer, or the kernel or a sandbox doesn't tell
 */
function uidOfPeer(ends: Ends): number | null {
  const uid = native().peerUid(ends.localAddress, ends.localPort, ends.remoteAddress, ends.remotePort);
  return uid < 0 ? null : uid;
}

/** @param texts addresses, or several with commas @throws ERR_INVALID_ARGUMENT */
export function parseAddresses(texts: readonly string[], option: string): BlockList {
  const addresses = new BlockList();
  for (const text of texts.flatMap((each) => each.split(','))) {
    const address = text.trim().split('%')[0] as string;
    const version = isIP(address);
    if (version === 0) throw invalidArgument(`${option}: ${showValue(text)} is no address; use 192.168.1.7`);
    addresses.addAddress(address, version === 6 ? 'ipv6' : 'ipv4');
  }
  return addresses;
}

function isIn(addresses: BlockList, address: string): boolean {
  const plain = plainAddress(address);
  // A scope, as in fe80::1%eth0, is no part of the number.
  return addresses.check(plain.split('%')[0] as string, isIP(plain) === 6 ? 'ipv6' : 'ipv4');
}
