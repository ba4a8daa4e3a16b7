import { formatDuration } from '../../platform/index.ts';
import { type AttemptInfo, lacksResult } from '../queue/index.ts';
import type { WorkerEvent } from '../worker/index.ts';

/** What a worker of this process does, as the log has it; null: nothing that belongs there. */
export function describeEvent(event: WorkerEvent): string | null {
  switch (event.type) {
    case 'assigned':
      return `Assigned task ${event.task.name} to ${event.worker}`;
    case 'completed':
      return `Task ${event.task.name} completed by ${event.worker}`;
    case 'failed': {
      const again = event.state === 'pending' ? ' (it will be started again)' : '';
      return `Task ${event.task.name} failed on ${event.worker}${again}: ${firstLine(event.error)}`;
    }
    case 'given-back': {
      const delay = event.delay > 0 ? `, to be started again in ${formatDuration(event.delay)}` : '';
      return `Task ${event.task.name} given back by ${event.worker}${delay}: ${firstLine(event.why)}`;
    }
    case 'revoked':
      return `Task ${event.task.name} taken from ${event.worker}: ${firstLine(event.why)}`;
    case 'left-behind': {
      const what =
        event.count === 1 ? 'a process behind, which was' : `${event.count} processes behind, which were`;
      return `Task ${event.task.name} left ${what} ended: ${event.names.join(', ')}`;
    }
    case 'trouble':
      return `${event.worker ?? 'a worker'}: ${firstLine(event.message)}`;
    case 'released':
      return event.why === 'environment'
        ? `${event.worker} has let its GPU go: something is wrong with it`
        : null;
    default:
      return null;
  }
}

/** An attempt of another process's worker: that it began, or how it ended. */
export function describeAttempt(attempt: AttemptInfo): string {
  const { taskName, taker, outcome, error } = attempt;
  const why = error === null ? '' : `: ${firstLine(error)}`;
  switch (outcome) {
    case null:
      return `Assigned task ${taskName} to ${taker.worker}`;
    case 'completed':
      return `Task ${taskName} completed by ${taker.worker}${lacksResult(attempt) ? ' without a result' : ''}`;
    case 'failed':
      return `Task ${taskName} failed on ${taker.worker}${why}`;
    case 'given-back':
      return `Task ${taskName} given back by ${taker.worker}${why}`;
    case 'cancelled':
      return `Task ${taskName} cancelled on ${taker.worker}`;
    case 'lost':
      return `Task ${taskName} lost by ${taker.worker}${why}`;
  }
}

/** What comes behind it are details: the end of the log. */
export function firstLine(text: string): string {
  return text.split('\n')[0] as string;
}
