import type { AttemptInfo } from '../queue/queue.ts';

/** An attempt began (`outcome` null), or ended. */
export interface TaskEvent {
  token: string;
  taskId: string;
  name: string;
  worker: string;
  outcome: AttemptInfo['outcome'];
  error: string | null;
}

/** As the log has it. */
export function describe({ name, worker, outcome, error }: TaskEvent): string {
  const why = error === null ? '' : `: ${error.split('\n')[0]}`;
  switch (outcome) {
    case null:
      return `Assigned task ${name} to ${worker}`;
    case 'completed':
      return `Task ${name} completed by ${worker}`;
    case 'failed':
      return `Task ${name} failed on ${worker}${why}`;
    case 'given-back':
      return `Task ${name} given back by ${worker}${why}`;
    case 'cancelled':
      return `Task ${name} cancelled on ${worker}`;
    case 'lost':
      return `Task ${name} lost by ${worker}${why}`;
  }
}
