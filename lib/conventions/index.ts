export type { Claimant, Entry, Holders, Leases } from './convention.ts';
export { Conventions, conventionsInUse } from './conventions.ts';
export { hide, isIntact, type Mark, remove } from './marks.ts';
export { safeGPUFiles } from './safe-gpu.ts';
