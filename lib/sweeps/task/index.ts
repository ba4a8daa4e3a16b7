export {
  DEFAULT_SEED,
  type Destination,
  outputDirectoriesOf,
  pythonOf,
  seedOf,
  type Task,
  type TaskCommand,
  type TaskSpec,
  taskId,
} from './task.ts';
export {
  canonical,
  formatValue,
  isValues,
  Literal,
  numberInString,
  parseValue,
  readValue,
  strictJSON,
  stringifyValue,
  type Value,
  type Values,
} from './values.ts';
