import { lookup } from 'node:dns/promises';
import { BlockList, isIP } from 'node:net';
import { GPUOwnerError } from '../../errors.ts';
import { sanitize, showValue } from '../../platform/index.ts';

/** An address to listen on. */
export interface Endpoint {
  /** An IP address. */
  host: string;
  /** 0: any that is free. */
  port: number;
}

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/**
 * `5000`, `0.0.0.0:5000`, `[::]:5000`, `gpu-server:5000`; without a host, 127.0.0.1.
 * @param option what users call it
 * @throws ERR_INVALID_ARGUMENT
 */
export async function parseEndpoint(text: string, option: string): Promise<Endpoint> {
  const [, bracketed, name, digits] = /^(?:(?:\[([^\]]+)\]|([^:[\]]+)):)?(\d{1,5})$/.exec(text) ?? [];
  const port = Number(digits);
  if (digits === undefined || port > 65_535) {
    throw invalid(
      `${option}: ${showValue(text)} is not an address to listen on; use PORT, HOST:PORT or [IPV6]:PORT`,
    );
  }
  const host = bracketed ?? name ?? '127.0.0.1';
  if (isIP(host) !== 0) return { host, port };
  if (host === 'localhost') return { host: '127.0.0.1', port };
  try {
    return { host: (await lookup(host)).address, port };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw invalid(
      `${option}: the host ${showValue(host)} can't be found (${sanitize(code ?? '')}); write its IP address`,
    );
  }
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
      throw invalid(
        `${option}: ${showValue(text)} is neither an address nor a network; use 192.168.1.7 or 10.0.0.0/8`,
      );
    }
    networks.addSubnet(address, prefix, version === 6 ? 'ipv6' : 'ipv4');
  }
  return networks;
}

/** Turns ::ffff:10.0.0.7 into 10.0.0.7: sockets for both versions of IP have IPv4 addresses so. */
export function plainAddress(address: string): string {
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1] ?? address;
}

export function isIn(networks: BlockList, address: string): boolean {
  const plain = plainAddress(address);
  // A scope, as in fe80::1%eth0, is no part of the number.
  return networks.check(plain.split('%')[0] as string, isIP(plain) === 6 ? 'ipv6' : 'ipv4');
}

export function isLoopback(address: string): boolean {
  return isIn(LOOPBACK, address);
}

/** `127.0.0.1:5000`, `[::1]:5000` */
export function formatEndpoint({ host, port }: Endpoint): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

function invalid(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}
