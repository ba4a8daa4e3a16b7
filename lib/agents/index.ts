// Programs that act for people: a server of the Model Context Protocol. The server does what the command does, and no more.
export { serveAgents } from './server.ts';
