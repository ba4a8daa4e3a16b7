import { timingSafeEqual } from 'node:crypto';
import { BlockList, isIP } from 'node:net';
import {
  type Endpoint,
  formatEndpoint,
  isLoopback,
  plainAddress,
  showValue,
  tokenDigest,
  usageError,
} from '../../platform/index.ts';

interface AuthenticationOptions {
  /** Clients at these addresses may do everything. */
  trust: BlockList;
  /** A secret; clients that send it may do everything. null: there is none, and clients of this machine may. */
  token: string | null;
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
    throw usageError(
      `--listen ${formatEndpoint(endpoint)}: other machines could connect there, but no machine is trusted. Add --trust with their addresses ` +
        '(--trust 192.168.1.7,192.168.1.8), or --token-file with a secret that they send',
    );
  }

  /** Why a client may not connect, unless it sends the token; null: it may. @param address of the client */
  refusalOf(address: string): string | null {
    if (isIn(this.#options.trust, address) || (!this.hasToken && isLoopback(address))) return null;
    const token = this.hasToken ? ', nor is there the right token in the request' : '';
    return `${address} is not among the trusted addresses (--trust)${token}`;
  }

  /** Whether a token is the secret. */
  knows(token: unknown): boolean {
    if (this.#options.token === null || typeof token !== 'string') return false;
    return timingSafeEqual(tokenDigest(token), tokenDigest(this.#options.token));
  }
}

/** @param texts addresses, or several with commas @throws ERR_INVALID_ARGUMENT */
export function parseAddresses(texts: readonly string[], option: string): BlockList {
  const addresses = new BlockList();
  for (const text of texts.flatMap((each) => each.split(','))) {
    const address = text.trim().split('%')[0] as string;
    const version = isIP(address);
    if (version === 0) throw usageError(`${option}: ${showValue(text)} is no address; use 192.168.1.7`);
    addresses.addAddress(address, version === 6 ? 'ipv6' : 'ipv4');
  }
  return addresses;
}

function isIn(addresses: BlockList, address: string): boolean {
  const plain = plainAddress(address);
  // A scope, as in fe80::1%eth0, is no part of the number.
  return addresses.check(plain.split('%')[0] as string, isIP(plain) === 6 ? 'ipv6' : 'ipv4');
}
