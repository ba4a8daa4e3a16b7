export type { BookingRules } from './booking-rules.ts';
export {
  type Configuration,
  loadConfiguration,
  loadNotificationTargets,
  mergeCriteria,
  type NotificationTargets,
} from './configuration.ts';
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
  type DeviceSelector,
  type NormalizedCriteria,
  normalizeCriteria,
  type OptionNames,
  parseBoolean,
  parseSelectors,
  refuseNoObject,
  type Selector,
} from './criteria.ts';
export { DEFAULT_ENFORCE_RULES, type EnforceRules } from './enforce-rules.ts';
export { checkHostName, type Host } from './hosts.ts';
export { driverLibraries, simulatedMachine, simulatedVariables, simulationDirectory } from './simulation.ts';
export type { UrgentUsers } from './urgent.ts';
export type { Limit, Limits } from './user-limits.ts';
export { loadYAML, offsetOf } from './yaml.ts';
