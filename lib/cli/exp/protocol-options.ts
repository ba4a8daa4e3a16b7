import {
  type Endpoint,
  parseDuration,
  parseEndpoint,
  readToken,
  showValue,
  usageError,
} from '../../platform/index.ts';
import { loadRunning, type ProtocolSettings } from '../../sweeps/index.ts';
import type { InferValues, OptionGroup } from '../command-line.ts';

/** Options of the port that workers of the original system connect to. */
export const PROTOCOL_GROUP = {
  title: 'Workers that ask over TCP (`gpu-owner docs many-machines`):',
  options: {
    listen: {
      value: 'PORT',
      isRepeatable: true,
      help: 'listen on this port, or on HOST:PORT (default: 127.0.0.1:5000)',
    },
    'no-listen': { help: "don't listen at all" },
    trust: {
      value: 'ADDRESS',
      isRepeatable: true,
      help: 'accept workers from this address',
    },
    'token-file': {
      value: 'FILE',
      help: 'accept workers that send the secret in this file, and on this machine only those',
      candidates: 'file',
    },
    'task-timeout': {
      value: 'DURATION',
      help: 'requeue a task whose worker has sent nothing for DURATION (default 2h)',
    },
  },
} as const satisfies OptionGroup;

const DEFAULT_ENDPOINT: Endpoint = { host: '127.0.0.1', port: 5_000 };
const DEFAULT_TIMEOUT = '2h';
const MIN_TASK_TIMEOUT_MS = 1_000;

/** @throws ERR_INVALID_ARGUMENT, ERR_CONFIGURATION */
export async function protocolSettings(
  values: InferValues<typeof PROTOCOL_GROUP.options>,
): Promise<ProtocolSettings> {
  const { listen = [], trust: trusted = [], 'token-file': file } = values;
  if (values['no-listen'] && listen.length > 0)
    throw usageError('--listen and --no-listen contradict each other');
  const timeout = values['task-timeout'] ?? DEFAULT_TIMEOUT;
  const lifetime = parseDuration(timeout, '--task-timeout');
  if (lifetime < MIN_TASK_TIMEOUT_MS) {
    throw usageError(`--task-timeout: ${showValue(timeout)} is too short for any task; use 30m, 2h, …`);
  }
  const endpoints = listen.length > 0 ? await Promise.all(listen.map((each) => parseEndpoint(each))) : [];
  const { Authentication, parseAddresses } = await loadRunning();
  const authentication = new Authentication({
    trust: parseAddresses(trusted, '--trust'),
    token: file === undefined ? null : readToken(file),
  });
  for (const endpoint of endpoints) authentication.check(endpoint);
  const byDefault = values['no-listen'] || listen.length > 0 ? [] : [DEFAULT_ENDPOINT];
  return {
    endpoints: [...endpoints, ...byDefault],
    authentication,
    lifetime,
  };
}
