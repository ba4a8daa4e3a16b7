// The effect that a run of a sweep would have, as `exp run --dry-run` shows it.
import { STATES, type State } from '../queue/index.ts';
import type { TaskSpec } from '../task/index.ts';

/** `new`: not in the queue. `repeated`: equal to one that comes earlier in the sweep; it has one row more, and no run of its own. */
export type PlanState = 'new' | 'repeated' | State;

export const PLAN_STATES: readonly PlanState[] = ['new', ...STATES, 'repeated'];

export type PlanCounts = Record<PlanState, number>;

export interface PlannedTask {
  id: string;
  /** null: it gets one when it is enqueued. */
  name: string | null;
  phase: string;
  outputDirectory: string;
  parameters: TaskSpec['parameters'];
  state: PlanState;
  /** Why it is in that state: what completed it, what went wrong; null: nothing to say. */
  why: string | null;
}

export interface PhasePlan {
  phase: string;
  /** Equal tasks counted each time. */
  size: number;
  /** The parameters that have several values, and how many; null: too many to count. */
  factors: { name: string; count: number | null }[];
  /** The first few. */
  outputDirectories: string[];
  counts: PlanCounts;
  /** Why tasks are in their states, the most frequent reasons first. */
  reasons: { state: PlanState; why: string | null; count: number }[];
  /** The first few that would run. */
  next: PlannedTask[];
}

export interface Plan {
  size: number;
  counts: PlanCounts;
  phases: PhasePlan[];
  /** Tasks that the queue has and the sweep hasn't; null: there are too many tasks to say. */
  gone: { count: number; counts: Record<State, number>; first: { name: string; state: State }[] } | null;
  /** Tasks that the queue, or an earlier phase, has with another command. */
  otherCommands: number;
  /** Whether one of them keeps `exp run` from giving them the new command: it was started, or the sweep has two for it. */
  keepsCommands: boolean;
}
