export {
  canonical,
  Literal,
  numberInString,
  parse,
  show,
  stringify,
  type Value,
  type Values,
} from './literal.ts';
export {
  DEFAULT_SEED,
  type Destination,
  seedOf,
  type Task,
  type TaskCommand,
  type TaskSpec,
  taskId,
} from './task.ts';
