import type { WaitingState } from '../../claims/index.ts';
import type { GPU } from '../../gpus/index.ts';
import type { State } from '../queue/index.ts';
import type { Task, Values } from '../task/index.ts';

/** What happens to a worker, as it happens: for progress displays and logs. `worker` is its name: 'gpu0', 'gpu0-1', 'gpu0.2'. */
export type WorkerEvent =
  /** It wants GPUs; again whenever there is news, with what it waits for. */
  | { type: 'claiming'; waiting: WaitingState | null }
  | { type: 'claimed'; worker: string; gpus: readonly GPU[] }
  /** A task's command is about to be started. `log`: absolute path. `start`: which of its counted starts this is, from 1. */
  | { type: 'assigned'; worker: string; task: Task; start: number; log: string }
  /** `seconds`: how long the command ran. */
  | { type: 'completed'; worker: string; task: Task; result: Values; seconds: number }
  /** `state`: what became of it: 'pending' when it will be started again. */
  | { type: 'failed'; worker: string; task: Task; error: string; state: State; seconds: number }
  /** It wasn't the task's fault. `delay`: ms until it may be started again. */
  | { type: 'given-back'; worker: string; task: Task; why: string; delay: number }
  /** The task isn't this worker's any longer (cancelled, lost): its command was ended, or its outcome came too late. */
  | { type: 'revoked'; worker: string; task: Task; why: string }
  /** Processes that a command had left when it ended, and that were ended after it. */
  | { type: 'left-behind'; worker: string; task: Task; count: number; names: readonly string[] }
  /** Nothing to do at the moment. `worker` is null while it holds no GPUs. `why`: tasks are paused, all have their time to wait for, or are active elsewhere. */
  | { type: 'idle'; worker: string | null; why: 'paused' | 'delayed' | 'active' }
  /** It has let its GPUs go: others stand in line, it had no work, something is wrong with them, or it ends. */
  | { type: 'released'; worker: string; why: 'others' | 'idle' | 'environment' | 'end' }
  /** Something doesn't work that is tried again: the queue, mostly. */
  | { type: 'trouble'; worker: string | null; message: string }
  | { type: 'stopped'; worker: string | null; end: WorkerEnd };

/** Why a worker has ended. */
export interface WorkerEnd {
  /**
   * finished: no task is left or can come back. drained, stopped: on request. failures: three different tasks have failed on it and
   * none succeeded in between. environment: three times in a row, a task couldn't be run for what wasn't its fault. error: it
   * could not go on; `error` has the reason, such as that no GPU can ever be had.
   */
  why: 'finished' | 'drained' | 'stopped' | 'failures' | 'environment' | 'error';
  /** For failures and environment: what went wrong, the same for all if it was. */
  message: string | null;
  error: Error | null;
}
