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
      return { content: [{ type: 'text' as const, text: inToolWords(error.message) }], isError: true };
    }
  };
}

/** The parameters of tools by the options of the command, whose messages name these. */
const PARAMETERS: Readonly<Record<string, string>> = {
  '-n': 'gpus',
  '--gpus': 'gpus',
  '--after-ok': 'afterOk',
  '--chdir': 'directory',
  '--env': 'environment',
  '--for': 'timeLimit',
  '--grace': 'graceSeconds',
  '--min-free-memory': 'minFreeMemory',
  '--timeout': 'seconds',
  '--wait': 'wait: true',
  '--no-wait': 'wait: false',
  ...Object.fromEntries(
    [
      'after',
      'array',
      'devices',
      'hosts',
      'idle',
      'memory',
      'name',
      'note',
      'on',
      'preemptible',
      'urgent',
    ].map((name) => [`--${name}`, name]),
  ),
};

/** The tools that do what these commands do. */
const TOOLS: Readonly<Record<string, string>> = {
  cancel: 'cancel_job',
  jobs: 'list_jobs',
  logs: 'job_log',
  queue: 'gpu_queue',
  status: 'gpu_status',
  submit: 'submit_job',
  wait: 'wait_job',
};

/** A message of the command for those who use it by tools. Command lines that have no tool stay as they are. */
export function inToolWords(message: string): string {
  return message.replace(
    /`gpu-owner ([a-z]+)([^`]*)`|`[^`]*`|(?<![\w-])--?[a-z][a-z-]*/g,
    (found, command, rest) => {
      if (command === undefined) return PARAMETERS[found] ?? found;
      const tool = TOOLS[command];
      if (tool === undefined) return found;
      return rest === ' --all' ? `${tool} with all: true` : tool;
    },
  );
}
