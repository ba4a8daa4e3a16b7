// The one piece of assembly for arm64 that a machine with x86-64 can run: the launcher's program, compiled and emulated where
// there are means for both. How to try the rest: docs/architecture.md.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { binaries } from '../binaries.ts';

const root = resolve(import.meta.dirname, '../..');
const script = join(root, 'bin/gpu-owner.cjs');
const COMPILER = 'aarch64-linux-gnu-g++';

const works = (program: string) => spawnSync(program, ['--version']).status === 0;
const emulator = ['qemu-aarch64', 'qemu-aarch64-static'].find(works);
const missing = [works(COMPILER) ? [] : COMPILER, emulator ?? 'qemu-user'].flat();
const possible = works(COMPILER) && emulator !== undefined && process.arch === 'x64';

describe.skipIf(!possible)(
  `gpu-owner-inherited for arm64${possible ? '' : ` (skipped: needs x86-64, ${missing.join(', ')})`}`,
  () => {
    let directory: string;
    let program: string;
    beforeAll(() => {
      directory = mkdtempSync(join(tmpdir(), 'gpu-owner-arm64-'));
      program = join(directory, 'gpu-owner-inherited');
      const sources = join(root, 'native/launcher');
      const { stderr } = spawnSync('sh', [join(sources, 'link.sh'), join(sources, 'inherited.cc'), program], {
        encoding: 'utf8',
        env: { ...process.env, CXX: COMPILER },
      });
      expect(stderr).toBe('');
    });
    afterAll(() => rmSync(directory, { recursive: true }));

    /** What it tells where HUP and USR1 are ignored, there are descriptors, a limit and variables that no shell can name. */
    function told(command: string, operands: string) {
      const surroundings = 'trap "" HUP USR1; ulimit -Sn 777; exec 7</dev/null 9</dev/null';
      const { stdout, stderr, status } = spawnSync(
        'sh',
        ['-c', `${surroundings}; ${command} ${operands} || exit`],
        { encoding: 'utf8', env: { ...process.env, 'odd-name': 'a\nb', 'BASH_FUNC_x%%': '() { :; }' } },
      );
      return { stdout, stderr, status };
    }

    it.each([
      ['what was inherited', `'${script}'`],
      ['variables that no shell can name', `'${script}' $$`],
      ['nothing to do', ''],
    ])('tells the same as the one for x86-64: %s', (_, operands) => {
      const native = told(`'${join(binaries(), 'gpu-owner-inherited')}'`, operands);
      expect(native.status).toBe(operands === '' ? 64 : 0);
      if (operands !== '') expect(native.stdout).toMatch(/^sigign=0000000000000201 nofile=777 fds=.*\b7,9/);
      expect(told(`${emulator} '${program}'`, operands)).toEqual(native);
    });
  },
);
