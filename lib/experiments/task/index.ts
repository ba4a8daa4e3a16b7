export {
  canonical,
  numberInString,
  parse,
  show,
  stringify,
  type Value,
  type Values,
  Written,
} from './literal.ts';
export {
  DEFAULT_SEED,
  type Place,
  seedOf,
  type Task,
  type TaskCommand,
  type TaskSpec,
  taskId,
} from './task.ts';
