export { isRedisURL, openQueue, withoutPassword } from './open.ts';
export {
  type Attempt,
  type AttemptInfo,
  type Completed,
  type Completion,
  type Counts,
  lacksResult,
  MAX_DELAY_MS,
  type Management,
  NO_PID,
  type Pause,
  type Queue,
  QueueRemovedError,
  STATES,
  type State,
  type TaskRow,
  type WithoutResult,
} from './queue.ts';
export { commandText, damagedTasks, NO_COMMAND_TEXT, readJSON } from './records.ts';
