import { GPUOwnerError } from '../../errors.ts';
import {
  Admission,
  type Endpoint,
  parseEndpoint,
  parseNetworks,
  readToken,
} from '../../experiments/index.ts';
import { parseDuration, showValue } from '../../platform/index.ts';
import type { OptionTable, Values } from '../arguments.ts';

/** Options of the port that workers of the original system connect to. */
export const PROTOCOL = {
  listen: { type: 'string', multiple: true },
  'no-listen': { type: 'boolean' },
  trust: { type: 'string', multiple: true },
  'token-file': { type: 'string' },
  'task-timeout': { type: 'string' },
  'unique-workers': { type: 'boolean' },
} as const satisfies OptionTable;

export const PROTOCOL_HELP = `Workers that ask over TCP (docs/manager.md has the protocol):
  --listen PORT             where, or HOST:PORT (default: 127.0.0.1:5000); may
                            be repeated
  --no-listen               nowhere
  --trust CIDR              who may connect besides your own processes on this
                            machine: an address, or a network (10.0.0.0/8)
  --token-file FILE         and those who send the secret in it
  --task-timeout DURATION   a task that nothing is heard of is given to another
                            worker after that (default 2h)
  --unique-workers          no two workers share a worker_id: one that asks for
                            a task has given up the one it had`;

const DEFAULT_ENDPOINT: Endpoint = { host: '127.0.0.1', port: 5_000 };
const DEFAULT_TIMEOUT = '2h';
const SHORTEST_TIMEOUT = 1_000;

export interface ProtocolSettings {
  endpoints: readonly Endpoint[];
  admission: Admission;
  /** In ms. */
  lifetime: number;
  unique: boolean;
}

/** @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION */
export async function protocolSettings(values: Values): Promise<ProtocolSettings> {
  const listen = (values.listen as string[] | undefined) ?? [];
  const trusted = (values.trust as string[] | undefined) ?? [];
  const file = values['token-file'] as string | undefined;
  if (values['no-listen'] && listen.length > 0) throw usage('--listen and --no-listen contradict each other');
  const timeout = values['task-timeout'] ?? DEFAULT_TIMEOUT;
  const lifetime = parseDuration(timeout, '--task-timeout');
  if (lifetime < SHORTEST_TIMEOUT) {
    throw usage(`--task-timeout: ${showValue(timeout)} is too short for any task; right are 30m, 2h, …`);
  }
  const endpoints =
    listen.length > 0 ? await Promise.all(listen.map((each) => parseEndpoint(each, '--listen'))) : [];
  const admission = new Admission({
    trust: parseNetworks(trusted, '--trust'),
    trusts: trusted.length > 0,
    token: file === undefined ? null : readToken(file),
  });
  for (const endpoint of endpoints) admission.check(endpoint);
  const byDefault = values['no-listen'] || listen.length > 0 ? [] : [DEFAULT_ENDPOINT];
  return {
    endpoints: [...endpoints, ...byDefault],
    admission,
    lifetime,
    unique: values['unique-workers'] === true,
  };
}

function usage(message: string): GPUOwnerError {
  return new GPUOwnerError('ERR_INVALID_ARGUMENT', message);
}
