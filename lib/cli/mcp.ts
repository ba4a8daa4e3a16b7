import { ownPackage } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type Parsed, rejectOperands } from './command-line.ts';
import { SUBMIT_GROUPS } from './run-options.ts';

async function mcp(parsed: Parsed): Promise<void> {
  rejectOperands(parsed);
  const { serveAgents } = await import('../agents/index.ts');
  serveAgents(ownPackage().version, Object.assign({}, ...SUBMIT_GROUPS.map(({ options }) => options)));
}

export const COMMAND: Command = {
  usage: '',
  about: `Lets a coding agent look at GPUs, submit jobs, read their output and cancel them: a server of the Model Context Protocol on standard input and output. An agent starts it, and can do with it what you could do with the command. \`gpu-owner docs mcp\` has the line for your agent.`,
  groups: [],
  run: mcp,
};
