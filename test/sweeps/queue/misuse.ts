import { setTimeout as sleep } from 'node:timers/promises';
import { GPUOwnerError } from '../../../lib/errors.ts';
import { type Queue, STATES } from '../../../lib/sweeps/queue/queue.ts';
import { exportResults } from '../../../lib/sweeps/tables/export.ts';
import { worker } from './conformance.ts';
import { plainTasks } from './fixtures/tasks.ts';

/** More is a loop without an end. */
const MAX_STEPS = 1_000;
/** Time limit of one operation, in ms: on a busy machine, too. */
const LIMIT = 60_000;

/** Everything that can be asked of a queue, in an order in which most of it has something to do. */
const OPERATIONS: Readonly<Record<string, (queue: Queue) => Promise<unknown>>> = {
  counts: (queue) => queue.counts(),
  nextTime: (queue) => queue.nextTime(),
  tasks: (queue) => count(queue.tasks()),
  match: (queue) => count(queue.tasks({ match: 'exp1_0_0' })),
  paused: (queue) => queue.paused(),
  manager: (queue) => queue.manager(),
  retracted: (queue) => queue.retracted(),
  living: (queue) => queue.attempts('living'),
  completed: (queue) => pages((after) => queue.completed(after, 3)),
  completions: (queue) => pages((after) => queue.completions(after, 3)),
  csv: (queue) => exportResults(queue, () => {}),
  attempts: async (queue) => {
    const ids: string[] = [];
    for await (const { task } of queue.tasks()) ids.push(task.id);
    for (const id of ids) await queue.attempts({ taskId: id });
    await queue.lookUp(ids);
  },
  manage: async (queue) => (await queue.manage({ host: 'here', pid: 1 }))?.release(),
  endLost: (queue) => queue.endLost(),
  pause: (queue) => queue.pause('person', 'for a moment'),
  resume: (queue) => queue.resume(),
  enqueue: (queue) => queue.enqueue(plainTasks(44)),
  take: async (queue) => {
    for (let times = 0; times < MAX_STEPS; times++) {
      const attempt = await queue.take(worker);
      if (attempt === null) return;
      const { token } = attempt;
      void queue.setLog(token, { path: '/log', from: 0, to: null }).catch(() => {}); // the log is written with the next change
      if (times % 3 === 0) await queue.fail(token, { error: 'exit code 1', retry: false });
      else if (times % 3 === 1) await queue.requeue(token, 'not now', 10);
      else {
        await queue.submit(token, { loss: times });
        await queue.complete(token, null);
      }
    }
  },
  importResults: async (queue) => {
    const ids: string[] = [];
    for await (const { task } of queue.tasks({ state: 'failed' })) ids.push(task.id);
    await queue.importResults(ids.map((id) => ({ id, result: { loss: 1 } })));
  },
  retry: async (queue) => {
    for (const state of STATES) await queue.retry({ state });
  },
  cancel: (queue) => queue.cancel('all'),
  after: (queue) => count(queue.tasks()),
};

/** Does it all with a queue that may be damaged. @returns what should not have happened: other errors than ERR_QUEUE, and waits without an end */
export async function misuse(open: () => Promise<Queue | null>): Promise<string[]> {
  const wrong: string[] = [];
  const attempt = async <T>(what: string, act: () => Promise<T>): Promise<T | null> => {
    const limit = new AbortController();
    const late = sleep(LIMIT, null, { signal: limit.signal }).then(
      () => {
        wrong.push(`${what}: no answer`);
        return null;
      },
      () => null,
    );
    try {
      return await Promise.race([act(), late]);
    } catch (error) {
      if (!(error instanceof GPUOwnerError && (error.code === 'ERR_QUEUE' || isOtherCommand(error)))) {
        wrong.push(`${what}: ${(error as Error).stack}`);
        // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
      } else if (/[\x00-\x1f\x7f-\x9f]/.test(error.message))
        wrong.push(`${what}: raw text: ${error.message}`);
      return null;
    } finally {
      limit.abort();
    }
  };
  const queue = await attempt('open', open);
  if (queue === null) return wrong;
  for (const [name, act] of Object.entries(OPERATIONS)) await attempt(name, () => act(queue));
  await attempt('close', () => queue.close());
  return wrong;
}

/** A byte of a command that was changed makes another command of it: nothing tells that from one that a person has changed. */
function isOtherCommand({ code, message }: GPUOwnerError): boolean {
  return code === 'ERR_INVALID_ARGUMENT' && message.startsWith('equal parameters, different commands: ');
}

async function count(list: AsyncIterable<unknown>): Promise<number> {
  let found = 0;
  for await (const _ of list) if (++found > MAX_STEPS) throw new Error('no end');
  return found;
}

async function pages(read: (after: number) => Promise<{ sequence: number }[]>): Promise<void> {
  for (let after = 0, times = 0; ; times++) {
    const last = (await read(after)).at(-1);
    if (last === undefined) return;
    if (times > MAX_STEPS) throw new Error('no end');
    after = last.sequence;
  }
}
