// The answers of the API that have an end, by path.
import { type DiscoveryRequest, ledgerOf } from '../../claims/index.ts';
import { reuseAnswer } from '../../platform/index.ts';
import { freshExposition } from '../../prometheus/index.ts';
import { dailyHours } from '../../usage/index.ts';
import { machineFamilies } from '../machine-metrics.ts';
import type { Feed } from './feed.ts';
import type { StreamMachine, UsageAnswer } from './shapes.ts';

const USAGE_FRESH_MS = 60_000;
const USAGE_DAYS = 30;

/** Makes answers. */
export type Answers = Readonly<Record<string, () => Promise<string>>>;

/** The answers about this machine: each as a command prints it. */
export function answersHere(feed: Feed, request: DiscoveryRequest): Answers {
  const current = async (): Promise<StreamMachine> => {
    const [machine] = await feed.current();
    if (feed.failure !== null || machine === undefined) throw feed.failure;
    return machine;
  };
  return {
    '/api/v1/gpus': async () => JSON.stringify((await current()).snapshot?.gpus),
    '/api/v1/queue': async () => JSON.stringify((await current()).snapshot?.queue),
    '/api/v1/jobs': async () => JSON.stringify((await current()).jobs),
    '/api/v1/history': async () => JSON.stringify(feed.history()),
    '/api/v1/usage': reuseAnswer(() => usageAnswer(feed, request), USAGE_FRESH_MS),
    '/metrics': freshExposition(() => machineFamilies(request)),
  };
}

/** The answers about other machines: an object by host. */
export function answersOfHosts(feed: Feed): Answers {
  const byHost = (key: string, of: (machine: StreamMachine) => unknown) => async () => {
    const told = (await feed.current()).map((machine) => {
      const { host, problem } = machine;
      return [host, { problem, [key]: of(machine) ?? null }];
    });
    return JSON.stringify(Object.fromEntries(told));
  };
  return {
    '/api/v1/gpus': byHost('gpus', ({ snapshot }) => snapshot?.gpus),
    '/api/v1/queue': byHost('queue', ({ snapshot }) => snapshot?.queue),
    '/api/v1/jobs': byHost('jobs', ({ jobs }) => jobs),
    '/api/v1/history': async () => JSON.stringify(feed.history()),
  };
}

async function usageAnswer(feed: Feed, { lockDirectory }: DiscoveryRequest): Promise<string> {
  const path = ledgerOf(lockDirectory);
  const gpus = (await feed.current())[0]?.snapshot?.gpus ?? [];
  const cards = new Set(gpus.map(({ index }) => index)).size || null;
  const answer: UsageAnswer =
    path === null ? { days: [], users: [] } : await dailyHours(path, cards, USAGE_DAYS);
  return JSON.stringify(answer);
}
