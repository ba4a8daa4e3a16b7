export { Authentication, readToken } from './authentication.ts';
export { type Endpoint, formatEndpoint, parseEndpoint, parseNetworks } from './endpoints.ts';
export { ProtocolService } from './server.ts';
