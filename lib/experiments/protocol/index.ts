export {
  Authentication,
  parseNetworks,
} from './access.ts';
export { PHASE_MEMBER } from './messages.ts';
export { type ManagerEvents, type Patience, RemoteQueue } from './remote-queue.ts';
export { ProtocolService, type ProtocolSettings } from './server.ts';
export { WorkerSession } from './worker-session.ts';
