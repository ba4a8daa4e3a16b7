// How much memory a program of the self-test takes, while others come and go.
import { expect, test } from 'vitest';
import { memoryIncrease } from '../../lib/check/cuda-program.ts';
import { MIB, makeGPU } from '../support/snapshots.ts';

function look(usedMiB: number, processes: [pid: number, usedMiB: number | null][]) {
  return makeGPU(0, {
    memory: { usedBytes: usedMiB * MIB },
    processes: processes.map(([pid, used]) => ({
      pid,
      type: 'compute' as const,
      usedBytes: used === null ? null : used * MIB,
    })),
  });
}

test('what ends meanwhile frees memory that the program takes', () => {
  expect(memoryIncrease(look(100, []), look(400, [[2, 300]]))).toBe(300 * MIB);
  expect(memoryIncrease(look(400, [[1, 300]]), look(400, [[2, 300]]))).toBe(300 * MIB);
  expect(memoryIncrease(look(400, [[1, null]]), look(400, [[2, 300]]))).toBeNull();
  expect(
    memoryIncrease(
      look(400, [[1, 300]]),
      look(450, [
        [1, 300],
        [2, 50],
      ]),
    ),
  ).toBe(50 * MIB);
  expect(memoryIncrease(undefined, look(400, []))).toBeNull();
});
