// A driver library that opens descriptors and starts a thread when it is loaded, as NVIDIA's do, and others who use it in the same process.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { because, compileDriverLibrary, compileOtherUser, noCompiler } from '../support/driver-library.ts';
import { Machine } from '../support/machine.ts';

const program = join(import.meta.dirname, 'fixtures/beside-other-user.mjs');
/** Rounds of each command. An abort by a descriptor that isn't the library's own came every time. */
const STARTS = process.env.GPU_OWNER_SOAK ? 20 : 1;

describe.skipIf(noCompiler !== null)(
  `a driver library with descriptors and a thread${because(noCompiler)}`,
  () => {
    let machine: Machine;
    let env: Record<string, string>;
    let other: string;
    beforeAll(() => {
      machine = new Machine(2);
      env = { GPU_OWNER_NVML_LIBRARY: compileDriverLibrary(machine.directory) };
      other = compileOtherUser(machine.directory);
    });
    afterAll(() => machine.close());

    test.each(['status --json', 'run --placeholder keep -- sleep 0.02', 'doctor'])(
      'gpu-owner %s works with it',
      async (words) => {
        for (let i = 0; i < STARTS; i++) {
          const { code, signal, stderr } = await machine.runCommand(words.split(' '), { env });
          expect({ code, signal, stderr }).toEqual({ code: 0, signal: null, stderr: '' });
        }
      },
    );

    test.each([
      ['the other user begins', 'use', 'claim'],
      ['both begin at once', 'useInThread', 'claim'],
    ])('GPUOwner works beside another user of NVML: %s', async (_, first, second) => {
      const { code, signal, stdout, stderr } = await machine.run(
        [process.execPath, program, other, first, second],
        { env },
      );
      expect({ code, signal, stdout, stderr }).toEqual({
        code: 0,
        signal: null,
        stdout: ' true\n',
        stderr: '',
      });
    });
  },
);
