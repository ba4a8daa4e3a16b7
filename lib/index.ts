export {
  type AcquireOptions,
  type ClaimOptions,
  type Device,
  GPUOwner,
  type GPUStatus,
} from './claims/index.ts';
export type { Criteria, DeviceSelector } from './config/index.ts';
export { type ErrorCode, GPUOwnerError, type GPUReason } from './errors.ts';
export type { GPU, GPUProcess, LeaseInfo, MIGInstance } from './gpus/index.ts';
export {
  type DiscoveryOptions,
  findFreeGPUs,
  findFreeGPUsSync,
  getGPUs,
  getGPUsSync,
  getQueue,
  type QueueEntry,
  type QueueOptions,
} from './status/index.ts';
