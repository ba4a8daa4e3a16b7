export { type Configuration, loadConfiguration, mergeCriteria } from './configuration.ts';
export { problem } from './configuration-file.ts';
export {
  CONVENTIONS,
  type ConventionChoice,
  type ConventionName,
  conventionsOfEnvironment,
  parseConventions,
} from './convention-choice.ts';
export {
  type Criteria,
  type NormalizedCriteria,
  normalizeCriteria,
  type OptionNames,
  refuseNoObject,
} from './criteria.ts';
export { type DeviceSelector, parseSelectors, type Selector } from './selectors.ts';
export { driverLibraries, simulatedMachine, simulationDirectory } from './simulation.ts';
export { loadYAML, nestingBeyond } from './yaml.ts';
