export {
  Authentication,
  type Endpoint,
  formatEndpoint,
  parseEndpoint,
  parseNetworks,
  readToken,
} from './access.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
