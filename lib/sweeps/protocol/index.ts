export { Authentication, parseAddresses } from './access.ts';
export { type Begin, ManagerConnection } from './manager-connection.ts';
export { RemoteQueue } from './remote-queue.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
export { WorkerSession } from './worker-session.ts';
