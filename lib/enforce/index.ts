export { Enforcer } from './enforcer.ts';
export { type Counters, lastLook, readState } from './state.ts';
