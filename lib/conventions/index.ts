export {
  type Claimant,
  type DecisionGuard,
  type Holders,
  hideMark,
  isIntact,
  type Leases,
  type Mark,
  removeMark,
} from './convention.ts';
export { Conventions } from './conventions.ts';
export { awaitWriters } from './gpu-lock-writers.ts';
