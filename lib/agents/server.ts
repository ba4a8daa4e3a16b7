// The server of the Model Context Protocol that `gpu-owner mcp` is.
import { Readable } from 'node:stream';
import { McpServer, parseJSONRPCMessage } from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import { OTHERS_TEXT } from './answer.ts';
import { addSubmitTool, type SubmitOptions } from './submit-tool.ts';
import { addTools } from './tools.ts';

const INSTRUCTIONS = `GPUs of this machine are shared. Never start a program on a GPU by yourself, and never end processes of others: submit a job. It waits in the queue, gets GPUs of its own, and releases them when it ends.
Look with gpu_status, submit with submit_job (with for, a time limit, and note, so that others can plan), follow with wait_job and job_log, and cancel what is no longer needed with cancel_job.
If all GPUs are taken, the job waits: call wait_job again, or do something else meanwhile. Jobs go on when this server ends.
${OTHERS_TEXT} So is the output of jobs.`;

/** A longer message ends the connection. */
const MAX_MESSAGE_LENGTH = 10 * 2 ** 20;
/** Codes of JSON-RPC. */
const PARSE_ERROR = -32_700;
const INVALID_REQUEST = -32_600;

/** Serves the tools on standard input and output until the input ends. @param options of `submit` */
export function serveAgents(version: string, options: SubmitOptions): void {
  const begin = () => {
    const server = new McpServer({ name: 'gpu-owner', version }, { instructions: INSTRUCTIONS });
    addTools(server);
    addSubmitTool(server, options);
    return server;
  };
  serveStdio(begin, { transport: new StdioServerTransport(Readable.from(messages(process.stdin))) });
}

/** The lines that are messages. Others are answered here: the library drops them, and their senders would wait. */
async function* messages(input: NodeJS.ReadStream): AsyncGenerator<Buffer> {
  let rest = '';
  for await (const text of input.setEncoding('utf8')) {
    rest += text;
    if (rest.length > MAX_MESSAGE_LENGTH) {
      process.stderr.write(
        'gpu-owner: a message of more than 10 MiB came: the connection ends. Start it again.\n',
      );
      process.exitCode = 1;
      return;
    }
    if (!text.includes('\n')) continue;
    const lines = rest.split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      const reply = line.trim() === '' ? null : replyToWrong(line);
      if (reply === null) yield Buffer.from(`${line}\n`);
      else process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...reply })}\n`);
    }
  }
}

/** The error for a line that is no message; null: it is one. */
function replyToWrong(line: string): object | null {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return { id: null, error: { code: PARSE_ERROR, message: 'the line is not JSON' } };
  }
  try {
    parseJSONRPCMessage(value);
    return null;
  } catch {
    const message = Array.isArray(value)
      ? 'batches are not supported: send each message in a line of its own'
      : 'the line is no message of JSON-RPC 2.0';
    const id = Object(value).id;
    const isId = typeof id === 'string' || typeof id === 'number';
    return { id: isId ? id : null, error: { code: INVALID_REQUEST, message } };
  }
}
