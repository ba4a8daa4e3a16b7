export { type Endpoint, formatEndpoint, parseEndpoint, parseNetworks } from './addresses.ts';
export { Admission, readToken } from './admission.ts';
export { ProtocolService } from './service.ts';
