// Tools that show the GPUs and the wait queue.
import type { McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';
import { label } from '../gpus/index.ts';
import { answer, orRefuse } from './answer.ts';
import { ANSWER_TIMEOUT_MS, askOwn } from './own-command.ts';
import {
  type Fields,
  GPU,
  gpuOf,
  holdersOf,
  listOf,
  OTHERS_TEXT,
  quoteOthers,
  Request,
  requestOf,
} from './records.ts';

const MAX_REQUESTS = 100;

export async function ask(what: string): Promise<Fields[]> {
  return listOf(await askOwn([what], { timeoutMs: ANSWER_TIMEOUT_MS }));
}

export async function askGPUs(): Promise<z.infer<typeof GPU>[]> {
  return (await ask('status')).map(gpuOf);
}

export function addGPUStatus(server: McpServer): void {
  server.registerTool(
    'gpu_status',
    {
      title: 'Show GPUs',
      description: `Shows every GPU of this machine: whether it is free, who has it and until when. ${OTHERS_TEXT}`,
      inputSchema: z.strictObject({}),
      outputSchema: z.object({ free: z.number().describe('how many are free'), gpus: z.array(GPU) }),
      annotations: { readOnlyHint: true, openWorldHint: false },
    },
    orRefuse(async () => {
      const gpus = await askGPUs();
      const free = gpus.filter(({ state }) => state === 'free').length;
      const divided = new Set(gpus.filter(({ instance }) => instance !== null).map(({ index }) => index));
      const units = gpus.filter(({ index, instance }) => instance !== null || !divided.has(index));
      return answer(
        { free, gpus },
        `${free} of ${units.length} GPUs are free`,
        ...gpus.map((gpu) => `GPU ${label(gpu)}: ${gpu.reason ?? 'free'}`),
        holdersOf(gpus),
      );
    }),
  );
}

export function addGPUQueue(server: McpServer): void {
  server.registerTool(
    'gpu_queue',
    {
      title: 'Show the wait queue',
      description: `Shows who waits for GPUs of this machine, in the order of service (the first ${MAX_REQUESTS}). ${OTHERS_TEXT}`,
      inputSchema: z.strictObject({}),
      outputSchema: z.object({ waiting: z.number(), requests: z.array(Request) }),
      annotations: { readOnlyHint: true, openWorldHint: false },
    },
    orRefuse(async () => {
      const all = await ask('queue');
      const known = all.length === 0 ? [] : await askGPUs();
      const requests = all.slice(0, MAX_REQUESTS).map((entry) => requestOf(entry, known));
      return answer(
        { waiting: all.length, requests },
        all.length === 0 ? 'Nobody is waiting.' : `${all.length} waiting`,
        quoteOthers(
          requests.map(({ position, gpus, user, command, name, note }) => ({
            position,
            gpus,
            user,
            command,
            name,
            note,
          })),
        ),
      );
    }),
  );
}
