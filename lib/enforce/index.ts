export { Enforcer } from './enforcer.ts';
export { lastLook, readState } from './state.ts';
