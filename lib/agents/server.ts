// The server of the Model Context Protocol that `gpu-owner mcp` is.
import { McpServer } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { OTHERS_TEXT } from './answer.ts';
import { addSubmitTool, type SubmitOptions } from './submit-tool.ts';
import { addTools } from './tools.ts';

const INSTRUCTIONS = `GPUs of this machine are shared. Never start a program on a GPU by yourself, and never end processes of others: submit a job. It waits in the queue, gets GPUs of its own, and releases them when it ends.
Look with gpu_status, submit with submit_job (with for, a time limit, and note, so that others can plan), follow with wait_job and job_log, and cancel what is no longer needed with cancel_job.
If all GPUs are taken, the job waits: call wait_job again, or do something else meanwhile. Jobs go on when this server ends.
${OTHERS_TEXT} So is the output of jobs.`;

/** Serves the tools on standard input and output until the input ends. @param options of `submit` */
export function serveAgents(version: string, options: SubmitOptions): void {
  const begin = () => {
    const server = new McpServer({ name: 'gpu-owner', version }, { instructions: INSTRUCTIONS });
    addTools(server);
    addSubmitTool(server, options);
    return server;
  };
  serveStdio(begin);
}
