// Many who stand in line with mixed wishes: who waits for what, and whether anybody is denied what they could have had.
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, Machine, NOBODY, output, pause, until, whyNotNobody } from '../support/machine.ts';

const WAITERS = process.env.GPU_OWNER_SOAK ? 200 : 12;
const GPUS = 8;
/** Longer than it takes that who is stopped is passed over. */
const LIFELESS = 5_000;
/** Longest time that a hand-over may take on a machine that is busy with other things. */
const DENIED = 3_000;

const fixture = join(import.meta.dirname, 'fixtures/waiter.mjs');
const twoUsers = whyNotNobody() === null;

interface Request {
  name: string;
  count: number;
  devices: number[];
  fate: 'served' | 'killed' | 'stopped';
}

let machine: Machine;
afterEach(() => machine.close());

test(`${WAITERS} waiters${twoUsers ? ' of two users' : ''} with mixed wishes, some killed and stopped: nobody is starved, none denied what they could have`, {
  timeout: (60 + 5 * WAITERS) * 1000,
}, async () => {
  machine = new Machine(GPUS);
  const witness = randomBytes(8).toString('hex');
  const holder = machine.startCommand(['hold', '-n', String(GPUS), '--placeholder', 'none']);
  await output(holder, /visibleDevices/);
  const requests = Array.from({ length: WAITERS }, (_, i) => randomRequest(i));
  const children: ReturnType<Machine['start']>[] = [];
  for (const [i, { name, count, devices }] of requests.entries()) {
    const words = JSON.stringify({ name, count, devices, hold: 20 + Math.random() * 150 });
    const other = twoUsers && i % 2 === 1 ? { uid: NOBODY, umask: '077' } : {};
    children.push(machine.start([process.execPath, fixture, witness, words], other));
    await until(async () => (await positions()) === i + 1);
  }
  const outcomes = children.map((child) => finished(child));
  const each = (fate: Request['fate'], act: (child: ReturnType<Machine['start']>) => void) =>
    requests.forEach((request, i) => {
      if (request.fate === fate) act(children[i] as ReturnType<Machine['start']>);
    });
  each('stopped', (child) => child.kill('SIGSTOP'));
  await pause(LIFELESS);
  holder.stdin?.end();
  each('killed', (child) => child.kill('SIGKILL'));
  const prompt = requests.flatMap(({ fate }, i) => (fate === 'stopped' ? [] : [outcomes[i]]));
  await Promise.all(prompt);
  each('stopped', (child) => child.kill('SIGCONT'));
  const texts = (await Promise.all(outcomes)).map(({ stdout }) => stdout);
  const all = texts.join('');
  expect(all).not.toMatch(/violation|failed/);
  for (const { name, fate } of requests) {
    if (fate !== 'killed') expect(all).toMatch(new RegExp(`^got ${name} `, 'm'));
  }
  expect(longestDenial(all, requests)).toBeLessThan(DENIED);
  expect(await machine.states()).toEqual(Array(GPUS).fill('free'));
  expect(await positions()).toBe(0);
});

async function positions(): Promise<number> {
  return JSON.parse((await machine.runCommand(['queue', '--json'])).stdout).length;
}

function randomRequest(i: number): Request {
  const random = (n: number) => Math.floor(Math.random() * n);
  const some = Array.from({ length: GPUS }, (_, gpu) => gpu).filter(() => random(3) === 0);
  const devices = random(3) === 0 && some.length > 0 ? some : Array.from({ length: GPUS }, (_, gpu) => gpu);
  const fate = (['killed', 'stopped'] as const)[random(6)] ?? 'served';
  return { name: `w${i}`, count: 1 + random(Math.min(4, devices.length)), devices, fate };
}

/** The longest time in ms for which the first who was still waiting could have had its GPUs. */
function longestDenial(text: string, requests: readonly Request[]): number {
  const events = [...text.matchAll(/^(got|gave) (\S+) (?:([\d,]+) )?([\d.]+)$/gm)]
    .map(([, kind, name, gpus, at]) => ({
      got: kind === 'got',
      name: name as string,
      gpus: (gpus ?? '').split(',').filter(Boolean).map(Number),
      at: Number(at),
    }))
    .sort((a, b) => a.at - b.at);
  const waiting = requests.filter(({ fate }) => fate === 'served');
  const held = new Map<string, number[]>();
  const denied = new Map<string, number>();
  let before = events[0]?.at ?? 0;
  for (const event of events) {
    const taken = new Set([...held.values()].flat());
    const [first] = waiting;
    const free = first?.devices.filter((gpu) => !taken.has(gpu)).length ?? 0;
    if (first && free >= first.count)
      denied.set(first.name, (denied.get(first.name) ?? 0) + event.at - before);
    before = event.at;
    if (event.got) held.set(event.name, event.gpus);
    else held.delete(event.name);
    const index = waiting.findIndex(({ name }) => name === event.name);
    if (index >= 0) waiting.splice(index, 1);
  }
  return Math.max(0, ...denied.values());
}
