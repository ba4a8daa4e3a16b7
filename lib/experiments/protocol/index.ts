export {
  Authentication,
  parseNetworks,
  readToken,
} from './access.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
