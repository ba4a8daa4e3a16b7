export { type Endpoint, formatEndpoint, parseEndpoint, parseNetworks } from './endpoints.ts';
export { Admission, readToken } from './authentication.ts';
export { ProtocolService } from './server.ts';
