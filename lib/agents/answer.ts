// Answers of tools.
import type { ServerContext } from '@modelcontextprotocol/server';
import { GPUOwnerError } from '../errors.ts';
import { CommandFailure } from './own-command.ts';
import type { Fields } from './records.ts';

/** An answer of a tool: the same for programs, and in short for those that read text alone. */
export function answer<Content extends Fields>(structuredContent: Content, ...lines: string[]) {
  return {
    content: [{ type: 'text' as const, text: lines.filter((line) => line !== '').join('\n') }],
    structuredContent,
  };
}

/** Makes a tool say what is wrong, so that the agent can do something else. */
export function orRefuse<Args>(
  tool: (args: Args, context: ServerContext) => Promise<ReturnType<typeof answer>>,
) {
  return async (args: Args, context: ServerContext) => {
    try {
      return await tool(args, context);
    } catch (error) {
      if (!(error instanceof CommandFailure || error instanceof GPUOwnerError)) throw error;
      return { content: [{ type: 'text' as const, text: error.message }], isError: true };
    }
  };
}
