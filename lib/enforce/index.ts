export { Enforcer } from './enforcer.ts';
export { lastLook } from './state.ts';
