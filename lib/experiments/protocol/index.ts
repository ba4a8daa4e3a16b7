export {
  Authentication,
  parseNetworks,
} from './access.ts';
export { PHASE_MEMBER } from './messages.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
