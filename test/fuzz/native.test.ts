// The native parsers, each with some thousand inputs; scripts/fuzz.js has what they are, and takes more.
import { describe, expect, test } from 'vitest';
import { compileNative, NATIVE, runNative, whyNotNative } from '../../scripts/fuzz.js';
import { whyUnchanged } from '../support/changes.ts';

// Compiling them takes 20 s of processor time.
const reason =
  whyUnchanged(['native', 'test/fuzz/native', import.meta.filename, 'scripts/fuzz.js']) ?? whyNotNative();
const limits = process.env.GPU_OWNER_SOAK ? { max_total_time: 30 } : { runs: 2_000, seed: 1 };

describe.skipIf(reason !== null)(`native parsers${reason === null ? '' : ` (${reason})`}`, () => {
  for (const target of Object.keys(NATIVE) as (keyof typeof NATIVE)[]) {
    test(`${target}: no input breaks it`, { timeout: 300_000 }, async () => {
      compileNative(target);
      const { held, output } = await runNative(target, limits);
      expect(held, output.slice(-8_000)).toBe(true);
    });
  }
});
