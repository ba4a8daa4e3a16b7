export {
  type AcquireOptions,
  type ClaimOptions,
  type Device,
  type DiscoveryOptions,
  findFreeGPUs,
  findFreeGPUsSync,
  GPUOwner,
  type GPUStatus,
  getGPUs,
  getGPUsSync,
  getQueue,
  type QueueEntry,
  type QueueOptions,
} from './claims/index.ts';
export type { Criteria, DeviceSelector } from './config/index.ts';
export { type ErrorCode, GPUOwnerError, type GPUReason } from './errors.ts';
export type { GPU, GPUProcess, LeaseInfo, MIGInstance } from './gpus/index.ts';
