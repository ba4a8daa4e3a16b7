// Tests that feed a parser with many inputs. `npm run test:all` takes the same ones each time, so that it fails for what has changed and
// not by chance; with GPU_OWNER_SOAK it looks for new ones for some seconds, and so does scripts/fuzz.js, for as long as it is told.
import { appendFileSync } from 'node:fs';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { GPUOwnerError } from '../../lib/errors.ts';

const {
  GPU_OWNER_SOAK,
  GPU_OWNER_FUZZ_INPUTS,
  GPU_OWNER_FUZZ_SECONDS,
  GPU_OWNER_FUZZ_SEED,
  GPU_OWNER_FUZZ_COUNTS,
} = process.env;
const FEW = 200;
const SOAK_SECONDS = 10;
/** Limit of processor time. An input that takes longer is as bad as one that throws. */
const MAX_INPUT_MS = 2_000;

const seconds = Number(GPU_OWNER_FUZZ_SECONDS ?? (GPU_OWNER_SOAK ? SOAK_SECONDS : 0));
const isSlice = !GPU_OWNER_FUZZ_INPUTS && seconds === 0;
const settings = {
  seed: Number(GPU_OWNER_FUZZ_SEED ?? (isSlice ? 1 : Date.now())) % 2 ** 31,
  numRuns: Number(GPU_OWNER_FUZZ_INPUTS ?? (isSlice ? FEW : Number.MAX_SAFE_INTEGER)),
  ...(GPU_OWNER_FUZZ_INPUTS || isSlice
    ? {}
    : { interruptAfterTimeLimit: seconds * 1_000, markInterruptAsFailure: false }),
};

/** A test of a promise that holds for all inputs. A failure shows the smallest input that was found to break it, and the seed. */
export function fuzz<T>(title: string, inputs: fc.Arbitrary<T>, promise: (input: T) => void): void {
  test(title, () => {
    const count = counted(title);
    fc.assert(
      fc.property(inputs, (input) => {
        const end = timed();
        promise(input);
        end();
        count.inputs++;
      }),
      settings,
    );
    count.tell();
  });
}

export function fuzzAsync<T>(
  title: string,
  inputs: fc.Arbitrary<T>,
  promise: (input: T) => Promise<void>,
): void {
  test(title, async () => {
    const count = counted(title);
    await fc.assert(
      fc.asyncProperty(inputs, async (input) => {
        const end = timed();
        await promise(input);
        end();
        count.inputs++;
      }),
      settings,
    );
    count.tell();
  });
}

function timed(): () => void {
  const start = performance.now();
  const before = process.cpuUsage();
  return () => {
    if (performance.now() - start < MAX_INPUT_MS) return;
    const { user, system } = process.cpuUsage(before);
    expect((user + system) / 1_000, 'ms of processor time for one input').toBeLessThan(MAX_INPUT_MS);
  };
}

function counted(title: string) {
  const count = {
    inputs: 0,
    tell: () => {
      const line = JSON.stringify({ title, inputs: count.inputs });
      if (GPU_OWNER_FUZZ_COUNTS) appendFileSync(GPU_OWNER_FUZZ_COUNTS, `${line}\n`);
    },
  };
  return count;
}

/** The result, or the error if it is one for people: anything else is thrown. Errors for people must be harmless to print. */
export function orRefusal<T>(parse: () => T, isRefusal = isGPUOwnerError): T | Error {
  try {
    return parse();
  } catch (error) {
    if (!(error instanceof Error) || !isRefusal(error)) throw error;
    expectPrintable(error.message);
    return error;
  }
}

function isGPUOwnerError(error: Error): boolean {
  return error instanceof GPUOwnerError;
}

/** No control characters, line breaks or invisible ones that change how the rest is shown. */
export function expectPrintable(text: string): void {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const found = /[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]/.exec(text);
  if (found !== null) throw new Error(`not printable: ${JSON.stringify(text)}`);
}

/** Characters in no text that people mean: escape sequences, directions, halves of characters, other spaces. */
const NASTY = [
  '\0',
  '\x1b[31m',
  '\x1b]0;x\x07',
  '\x9b2J',
  '\r',
  '\n',
  '\r\n',
  '\t',
  '\u202e',
  '\u2028',
  '\ufeff',
  '\ud83d',
  '\udc00',
  'ä',
  '\u00a0',
  '𝒳',
  '"',
  "'",
  '\\',
  '`',
  '$',
  '{',
  '}',
  '[',
  ']',
  '(',
  ')',
  ',',
  ';',
  ':',
  '#',
  '-',
  '.',
  '/',
  '%',
  '*',
  '&',
  '!',
  '|',
  '>',
  '=',
  '__proto__',
  'constructor',
  'NaN',
  '-0',
  '1e999',
  '9007199254740993',
  '0x10',
  '..',
  '~',
  'null',
  'true',
  'yes',
  ' ',
  '  ',
];

/** Text of all kinds: often short words of `words`, put together, with something nasty in between. */
export function text(words: readonly string[] = []): fc.Arbitrary<string> {
  const piece = fc.oneof(
    { weight: 4, arbitrary: fc.constantFrom(...words, ...NASTY) },
    { weight: 2, arbitrary: fc.string({ maxLength: 8 }) },
    { weight: 1, arbitrary: fc.string({ unit: 'binary', maxLength: 8 }) },
    { weight: 1, arbitrary: fc.integer().map(String) },
  );
  return fc.array(piece, { maxLength: 16 }).map((pieces) => pieces.join(''));
}

/** A valid text, and texts that are almost it: something taken out, put in, doubled, or cut off. */
export function mutated(valid: fc.Arbitrary<string>, words: readonly string[] = []): fc.Arbitrary<string> {
  const change = fc.record({
    at: fc.nat(10_000),
    length: fc.nat(12),
    what: fc.oneof(fc.constantFrom('', ...words, ...NASTY), fc.constant(null)),
  });
  return fc.tuple(valid, fc.array(change, { maxLength: 4 })).map(([start, changes]) =>
    changes.reduce((now, { at, length, what }) => {
      const from = at % (now.length + 1);
      const removed = now.slice(from, from + length);
      return (
        now.slice(0, from) + (what ?? removed + removed) + now.slice(what === null ? from : from + length)
      );
    }, start),
  );
}

/** Any value that JSON can have, the absurd ones included. */
export const jsonValue: fc.Arbitrary<unknown> = fc.oneof(
  fc.jsonValue({ maxDepth: 3 }),
  fc.constantFrom(-1, 0, 1.5, 2 ** 31, 2 ** 53, 1e300, -0, '', null, true, [], {}),
  text(),
);
