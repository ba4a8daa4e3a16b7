import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Authentication, parseAddresses } from '../../../lib/sweeps/protocol/access.ts';
import { ProtocolService } from '../../../lib/sweeps/protocol/server.ts';
import { openQueue } from '../../../lib/sweeps/queue/index.ts';
import type { Queue } from '../../../lib/sweeps/queue/queue.ts';
import { freePort } from '../../support/ports.ts';
import { spec } from '../queue/fixtures/tasks.ts';

let directory: string;
let queue: Queue;
let service: ProtocolService;
let told: string[];
let port: number;

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-service-'));
  queue = await openQueue(null, directory);
  await queue.enqueue([spec({ n: 1, phase_name: 'a parameter' })]);
  told = [];
  port = await freePort();
  service = new ProtocolService({
    queue,
    endpoints: [{ host: '127.0.0.1', port }],
    authentication: new Authentication({ trust: parseAddresses([], '--trust'), token: null }),
    lifetime: 60_000,
    resultInTable: async () => null,
    tell: (message) => told.push(message),
  });
});
afterEach(async () => {
  await service.close();
  await queue.close();
  rmSync(directory, { recursive: true });
});

const REQUEST = '{"type": "request_task", "worker_id": "gpu0"}';

function ask(request = REQUEST): Promise<string> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(port, '127.0.0.1', () => socket.write(request));
    socket.on('data', (piece) => {
      answer += piece;
    });
    socket.on('close', () => resolve(answer));
  });
}

test('a worker gets a task with a seed and its phase, and hears when there are no more', async () => {
  await service.listen(true);
  const answer = ask();
  setTimeout(() => service.open(), 300);
  expect(told).toEqual([`workers can ask for tasks at 127.0.0.1:${port}`]);
  const { type, task } = JSON.parse(await answer);
  expect(type).toBe('task');
  // The task has no seed, as tasks of a grid may; workers hand theirs to PyTorch. A parameter doesn't hide the phase.
  const assigned = { status: 'assigned', assigned_to: 'gpu0' };
  expect(task).toMatchObject({ seed: 42, config: { n: 1, phase_name: 'exp1' }, ...assigned });
  expect(Math.abs(Date.now() / 1000 - task.assigned_at)).toBeLessThan(60);
  expect(JSON.parse(await ask())).toEqual({ type: 'no_task' });
});
