export {
  Authentication,
  parseNetworks,
} from './access.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
