import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from '../support/machine.ts';
import { Random } from '../support/random.ts';
import { type ModelJob, type Outcome, simulate } from './model.ts';

const SEEDS = 20;

/** Twenty jobs of each of two users: minutes to an hour long, on one to four GPUs. */
function workload(random: Random, spreadS: number): ModelJob[] {
  return Array.from({ length: 40 }, (_, i) => ({
    user: i % 2,
    gpus: random.pick([1, 1, 1, 2, 2, 4]) as number,
    seconds: 120 + Math.floor(1_800 * random.float() ** 2),
    arrival: random.integer(spreadS),
  }));
}

/** Means over many workloads, in per cent of one queue for all; idle: the longest of all, in s. */
function compared(spreadS: number) {
  const ratios: Outcome[] = [];
  for (let seed = 1; seed <= SEEDS; seed++) {
    const jobs = workload(new Random(seed), spreadS);
    const [central, moving] = [true, false].map((isCentral) =>
      simulate(jobs, [4, 4, 8], isCentral, new Random(seed)),
    ) as [Outcome, Outcome];
    ratios.push({
      end: moving.end / central.end,
      turnaround: moving.turnaround / central.turnaround,
      idle: moving.idle,
    });
  }
  const mean = (key: 'end' | 'turnaround') =>
    Math.round((100 * ratios.reduce((sum, each) => sum + each[key], 0)) / ratios.length);
  return {
    end: mean('end'),
    turnaround: mean('turnaround'),
    idle: Math.max(...ratios.map(({ idle }) => idle)),
  };
}

test('two users whose jobs move end about as soon as with one queue for all hosts, as the page says', () => {
  const page = readFileSync(join(root, 'docs/fleet.md'), 'utf8');
  for (const [name, spreadS] of [
    ['at once', 1],
    ['over half an hour', 1_800],
  ] as const) {
    const { end, turnaround, idle } = compared(spreadS);
    expect(end, name).toBeLessThanOrEqual(110);
    expect(idle).toBeLessThanOrEqual(5);
    expect(turnaround, name).toBeLessThanOrEqual(110);
    expect(page, name).toContain(`the last job ends ${end - 100} % later`);
  }
});
