export { commandText, NO_COMMAND_TEXT } from './new-task.ts';
export { QueueRemovedError } from './queue.ts';
export { openQueue } from './open.ts';
export {
  type Attempt,
  type AttemptInfo,
  type Completed,
  type Completion,
  type Counts,
  lacksResult,
  type Management,
  MAX_DELAY_MS,
  NO_PID,
  type Pause,
  type Queue,
  STATES,
  type State,
  type TaskRow,
  type WithoutResult,
} from './queue.ts';
export { damagedTasks, readJSON } from './records.ts';
export { isRedisURL, withoutPassword } from './open.ts';
