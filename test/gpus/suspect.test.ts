import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  BEFORE_RESET,
  CUDA_CODES,
  explainCudaCode,
  resetOf,
  showCudaCode,
} from '../../lib/gpus/cuda-codes.ts';
import { type CudaNote, describeSuspect, suspectsIn } from '../../lib/gpus/suspect.ts';

const NOW = Date.parse('2026-11-28T12:00:00Z');
const MINUTE = 60_000;
const [ROOT, ALICE, BOB, CAROL] = [0, 1000, 1001, 1002] as const;

/** A user's experience with GPU a, so many minutes ago. */
const note = (uid: number, minutes: number, code = 999): CudaNote => ({
  uid,
  uuid: 'a',
  code,
  since: NOW - minutes * MINUTE,
  at: NOW - minutes * MINUTE,
});

/** For each of these users, whether it takes GPU a last. */
function counted(notes: readonly CudaNote[], ...users: number[]): (boolean | undefined)[] {
  return users.map((uid) => suspectsIn(notes, uid, NOW).get('a')?.isCounted);
}

describe('a GPU on which CUDA failed', () => {
  test('is suspect at once for the user who saw it, and shown to others', () => {
    expect(counted([note(ALICE, 1)], ALICE, BOB, ROOT)).toEqual([true, false, false]);
  });

  test('is suspect for all if root or two users say so', () => {
    expect(counted([note(ROOT, 1)], ALICE, BOB)).toEqual([true, true]);
    expect(counted([note(ALICE, 1), note(BOB, 2)], CAROL, ROOT)).toEqual([true, true]);
    expect(counted([note(ALICE, 1), note(ALICE, 2)], CAROL)).toEqual([false]);
  });

  test('is forgotten after an hour, and a note of the future says nothing', () => {
    expect(counted([note(ALICE, 59)], ALICE)).toEqual([true]);
    expect(counted([note(ALICE, 60)], ALICE)).toEqual([undefined]);
    expect(counted([note(ALICE, -1)], ALICE)).toEqual([undefined]);
    expect(counted([note(ALICE, 1), note(BOB, 61)], CAROL)).toEqual([false]);
  });

  test('is healed for others where it worked since, not for a user who saw it fail', () => {
    const notes = [note(ALICE, 3), note(BOB, 2), note(CAROL, 1, 0)];
    expect(counted(notes, CAROL, ROOT, ALICE)).toEqual([undefined, undefined, true]);
    expect(counted([note(CAROL, 5, 0), note(ALICE, 3), note(BOB, 2)], ROOT)).toEqual([true]);
  });

  test('tells the last code, the first time, and who saw it', () => {
    const suspect = suspectsIn([note(BOB, 30, 719), note(ALICE, 2, 46)], CAROL, NOW).get('a');
    expect(suspect).toEqual({
      code: 46,
      since: NOW - 30 * MINUTE,
      at: NOW - 2 * MINUTE,
      uids: [ALICE, BOB],
      isCounted: true,
    });
    expect(describeSuspect({ code: 46, at: Date.now() })).toMatch(
      /^suspect: CUDA failed with 46 \(CUDA_ERROR_DEVICE_UNAVAILABLE\) at \d\d:\d\d$/,
    );
  });
});

describe('the table of what CUDA says', () => {
  test.each(Object.entries(CUDA_CODES))('%s has a name, one cause and its remedy', (_, code) => {
    expect(code.name).toMatch(/^CUDA_ERROR_[A-Z_]+$/);
    expect(code.cause).toMatch(/[^.]$/);
    expect(code.remedy).toMatch(/\.$/);
    expect(code.remedy).not.toMatch(/--placeholder|\. [a-z]/);
    expect((code.remedy.match(/`/g) ?? []).length % 2).toBe(0);
  });

  test('is told once more on docs/troubleshooting.md how a GPU is reset', () => {
    const page = readFileSync(new URL('../../docs/troubleshooting.md', import.meta.url), 'utf8');
    const reset = `${resetOf('N')}, or reboot.`.replace('Reset the GPU: e', '### Reset a GPU  E');
    expect(page.replaceAll('\n', ' ')).toContain(reset);
  });

  test('and all other advice names what keeps a GPU from being reset, or its MIG mode from being changed', () => {
    for (const { remedy } of Object.values(CUDA_CODES))
      expect(/--gpu-reset/.test(remedy)).toBe(remedy.includes(BEFORE_RESET));
    expect(BEFORE_RESET).toMatch(/`gpu-owner web`, `metrics --listen` and a `run` that waits/);
    const lib = new URL('../../lib', import.meta.url).pathname;
    const lines = readdirSync(lib, { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.ts'))
      .flatMap((name) => readFileSync(join(lib, name), 'utf8').split('\n'))
      .filter((line) => /--gpu-reset -i|-mig [01]\\`|--gpu-reset`/.test(line));
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.filter((line) => !line.includes('${BEFORE_RESET}'))).toEqual([]);
  });

  test('names each error once', () => {
    const names = Object.values(CUDA_CODES).map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
  });

  test('says of which errors no other GPU of the machine is free', () => {
    const machine = Object.entries(CUDA_CODES).filter(([, { blames }]) => blames === 'machine');
    expect(machine.map(([code]) => Number(code))).toEqual([34, 500, 802, 803, 804, 805, 807]);
  });

  test('names the GPU in commands, and knows what to say of other codes', () => {
    expect(explainCudaCode(214, 3).remedy).toContain('`nvidia-smi --gpu-reset -i 3`');
    expect(showCudaCode(802)).toBe('802 (CUDA_ERROR_SYSTEM_NOT_READY)');
    expect(showCudaCode(12345)).toBe('12345');
    expect(explainCudaCode(12345).cause).toContain('no more than this code');
  });
});
