export {
  type Claimant,
  type Entry,
  type Holders,
  hide,
  isIntact,
  type Leases,
  type Mark,
  remove,
} from './convention.ts';
export { Conventions, conventionsInUse } from './conventions.ts';
export { safeGPUFiles } from './safe-gpu.ts';
