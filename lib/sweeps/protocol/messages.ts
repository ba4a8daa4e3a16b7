import { isUtf8 } from 'node:buffer';
import { sanitize, showValue } from '../../platform/index.ts';
import type { AttemptInfo } from '../queue/index.ts';
import {
  DEFAULT_SEED,
  isValues,
  Literal,
  readValue,
  seedOf,
  stringifyValue,
  type Task,
  type Value,
  type Values,
} from '../task/index.ts';
import type { RequestAnswer } from './connection.ts';

/** A request that can't be met. The client gets the message. */
export class RequestError extends Error {}

export type Request = { token: unknown } & (
  | { type: 'request_task'; worker: string; gpu: string | null }
  | { type: 'task_complete'; worker: string; task: string }
  | { type: 'task_failed'; worker: string; task: string; error: string }
  | { type: 'submit_result'; worker: string; task: string; result: Values }
  | { type: 'status' }
);

const TYPES = ['request_task', 'task_complete', 'task_failed', 'submit_result', 'status'] as const;
const MAX_NAME_LENGTH = 200;
const MAX_ERROR_LENGTH = 8_000;

/** @throws RequestError */
export function parseRequest(members: Values): Request {
  const type = TYPES.find((each) => each === members.type);
  if (type === undefined) {
    throw new RequestError(
      `there is no request ${showValue(members.type)}; the known ones are ${TYPES.join(', ')}`,
    );
  }
  const token = own(members, 'token');
  switch (type) {
    case 'status':
      return { type, token };
    case 'request_task':
      return { type, token, worker: name(members, 'worker_id'), gpu: gpuOf(members) };
    case 'task_complete':
      return { type, token, worker: name(members, 'worker_id'), task: name(members, 'task_id') };
    case 'task_failed':
      return {
        type,
        token,
        worker: name(members, 'worker_id'),
        task: name(members, 'task_id'),
        error: errorOf(members),
      };
    case 'submit_result':
      return {
        type,
        token,
        worker: name(members, 'worker_id'),
        task: name(members, 'task_id'),
        result: objectOf(members, 'result_data'),
      };
  }
}

/** Reads an object of JSON in UTF-8. null: it is none, or not complete. */
export function parseObject(bytes: Buffer): Values | null {
  const value = isUtf8(bytes) ? readValue(bytes.toString()) : undefined;
  return isValues(value) ? value : null;
}

function own(members: Values, key: string): Value | undefined {
  return Object.hasOwn(members, key) ? members[key] : undefined;
}

/** Reads a name. Numbers do as well: people number their workers. */
function name(members: Values, key: string): string {
  const value = own(members, key);
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text !== 'string' || text.trim() === '' || text.length > MAX_NAME_LENGTH) {
    throw new RequestError(
      `${key} must be a text of 1 to ${MAX_NAME_LENGTH} characters, not ${showValue(value)}`,
    );
  }
  return text;
}

function gpuOf(members: Values): string | null {
  const value = own(members, 'gpu_id');
  if (value === undefined || value === null) return null;
  if (typeof value === 'number' || typeof value === 'string') return sanitize(String(value), 100);
  throw new RequestError(`gpu_id must be a number or a text, not ${showValue(value)}`);
}

function errorOf(members: Values): string {
  const value = own(members, 'error');
  if (value === undefined || value === null || value === '') return 'the worker gave no reason';
  if (typeof value === 'object' && !(value instanceof Literal)) {
    throw new RequestError('error must be a text');
  }
  return failureText(String(value instanceof Literal ? value.text : value));
}

/** A failure in the words of a worker. Line by line: a traceback stays readable, and the first line is the summary. */
export function failureText(text: string): string {
  return text
    .slice(0, MAX_ERROR_LENGTH)
    .split('\n')
    .map((line) => sanitize(line, 1_000))
    .filter((line) => line !== '')
    .join('\n');
}

function objectOf(members: Values, key: string): Values {
  const value = own(members, key);
  if (isValues(value)) return value;
  throw new RequestError(`${key} must be an object such as {"accuracy": 0.9}, not ${showValue(value)}`);
}

export const ACK: RequestAnswer = { text: '{"type":"ack"}' };
export const NO_TASK: RequestAnswer = { text: '{"type":"no_task"}' };

/** A task as workers of the original system read it. Such a task always has a seed, which they hand to PyTorch. */
export function describeTask(
  { name, parameters, destinations }: Task,
  worker: string,
  since: number,
): string {
  const { phase = '', outputDirectory = '' } = destinations[0] ?? {};
  const config: Values = { ...parameters, output_dir: outputDirectory, phase_name: phase };
  const seed = Object.hasOwn(parameters, 'seed') ? seedOf(parameters) : DEFAULT_SEED;
  const assigned = { status: 'assigned', assigned_to: worker, assigned_at: since / 1000 };
  const task = { task_id: name, phase, config, seed, output_dir: outputDirectory, ...assigned };
  return stringifyValue({ type: 'task', task });
}

/** Explains why a worker's message about a task is rejected. @param attempts its attempts at the task, the last first */
export function whyRejected(task: string, worker: string, attempts: readonly AttemptInfo[]): string {
  const outcome = attempts[0]?.outcome ?? 'with another worker now';
  return `task ${sanitize(task)} no longer belongs to ${sanitize(worker)}: it is ${outcome}`;
}
