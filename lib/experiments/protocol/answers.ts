import { sanitize } from '../../platform/index.ts';
import type { AttemptInfo } from '../queue/index.ts';
import { DEFAULT_SEED, seedOf, stringify, type Task, type Values } from '../task/index.ts';
import type { Answer } from './connection.ts';

export const ACK: Answer = { text: '{"type":"ack"}' };
export const NO_TASK: Answer = { text: '{"type":"no_task"}' };

/** As workers get it: with the names that the original's have, and always with a seed, which they hand to PyTorch. */
export function describeTask({ name, parameters, places }: Task, worker: string, since: number): string {
  const { phase = '', outputDirectory = '' } = places[0] ?? {};
  const config: Values = { phase_name: phase, ...parameters, output_dir: outputDirectory };
  const seed = Object.hasOwn(parameters, 'seed') ? seedOf(parameters) : DEFAULT_SEED;
  const assigned = { status: 'assigned', assigned_to: worker, assigned_at: since / 1000 };
  const task = { task_id: name, phase, config, seed, output_dir: outputDirectory, ...assigned };
  return stringify({ type: 'task', task });
}

/** Why a worker's word on a task changes nothing. @param attempts of it at the task, the last first */
export function whyRejected(task: string, worker: string, attempts: readonly AttemptInfo[]): string {
  const [last] = attempts;
  const why: Record<NonNullable<AttemptInfo['outcome']>, string> = {
    completed: 'it was completed before; what it has stays',
    failed: 'it was said to have failed before',
    'given-back': 'it was given back before',
    lost: 'somebody else has completed it meanwhile, or it was retried or cancelled',
    cancelled: 'it was cancelled, or somebody else had a result first',
  };
  return `task ${sanitize(task)} isn't ${sanitize(worker)}'s any longer: ${last?.outcome ? why[last.outcome] : 'it has just changed hands'}`;
}
