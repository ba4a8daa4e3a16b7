export {
  type DiscoveryOptions,
  findFreeGPUs,
  findFreeGPUsSync,
  type GPUStatus,
  getGPUs,
  getGPUsSync,
} from './claims/discovery.ts';
export type { AcquireOptions, ClaimOptions } from './claims/options.ts';
export { type Device, GPUOwner } from './claims/owner.ts';
export { getQueue, type QueueEntry, type QueueOptions } from './claims/queue.ts';
export { type ErrorCode, GPUOwnerError, type GPUReason } from './errors.ts';
export type { Criteria, DeviceSelector } from './gpus/criteria.ts';
export type { GPU, GPUProcess, LeaseInfo, MIGInstance } from './gpus/types.ts';
