import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Machine, root } from '../support/machine.ts';

let machine: Machine;
afterEach(() => machine.close());

/** In s. Both come within it, and either works for twice as long: on a busy machine, too. */
const PAUSE = 2;
const WORK = 2 * PAUSE;

/** Lines of the log: what was said, and when in ms. */
function read(log: string) {
  const lines = [...log.matchAll(/^GPUOwner(\d) (\S+ [\d:]+),(\d+) \[(\w+)\] (.*)$/gm)];
  return lines.map(([, , time, ms, level, said = '']) => ({
    at: Date.parse(`${time?.replace(' ', 'T')}.${ms}Z`),
    level,
    said,
  }));
}

test('one of two acquisitors on three GPUs waits until the other has taken its own', async () => {
  machine = new Machine(3);
  const start = (id: number, gpus: number) =>
    machine.run([
      process.execPath,
      join(root, 'examples/acquisitor.mjs'),
      ...['--id', `${id}`, '--gpus', `${gpus}`, '--pause', `${PAUSE}`, '--work', `${WORK}`],
    ]);
  const runs = await Promise.all([start(1, 1), start(2, 2)]);
  const logs = runs.map(({ code, stdout, stderr }) => {
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    return read(stdout);
  });
  for (const log of logs) {
    expect(log.map(({ said }) => said.replace(/=.*$/, ''))).toEqual([
      'acquiring lock',
      'lock acquired',
      `has chosen, and pauses for ${PAUSE} s before taking`,
      'took them',
      'lock released',
      'Set CUDA_VISIBLE_DEVICES',
      'Finished',
    ]);
  }
  const when = (log: ReturnType<typeof read>, said: string) =>
    log.find((line) => line.said === said)?.at as number;
  const [first, second] = logs.sort((a, b) => when(a, 'lock acquired') - when(b, 'lock acquired'));
  if (first === undefined || second === undefined) throw new Error('two were started');
  // The second came while the first was deciding, and got its turn only when the first had its GPUs…
  expect(when(second, 'acquiring lock')).toBeLessThan(when(first, 'took them'));
  expect(when(second, 'lock acquired')).toBeGreaterThanOrEqual(when(first, 'took them'));
  // …which it still had when the second took its own.
  expect(when(second, 'took them')).toBeLessThan(when(first, 'Finished'));
  const given = runs.flatMap(({ stdout }) => /CUDA_VISIBLE_DEVICES=(.*)$/m.exec(stdout)?.[1]?.split(','));
  expect(new Set(given).size).toBe(3);
  expect(given).toHaveLength(3);
});
