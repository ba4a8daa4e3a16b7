// The native part compiles with another compiler and standard library than that of this machine, and each header compiles alone.
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { whyUnchanged } from './support/changes.ts';
import { root } from './support/machine.ts';

const OPTIONS = [
  '-std=c++17',
  '-fsyntax-only',
  '-fno-exceptions',
  '-fno-rtti',
  '-x',
  'c++',
  '-Inative',
  '-I.',
];
const LIBCXX = ['clang++', '-stdlib=libc++'];

/** @returns what the compiler says; empty: it compiles */
function compile(compiler: string[], file: string): Promise<string> {
  const [program = '', ...options] = compiler;
  const child = spawn(program, [...options, ...OPTIONS, file], {
    cwd: root,
    stdio: [file === '-' ? 'pipe' : 'ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text) => {
    said += text;
  });
  child.stdin?.on('error', () => {}).end('#include <string>\n');
  return new Promise((resolve) => {
    child.once('error', ({ message }) => resolve(message));
    child.once('close', (status) => resolve(status === 0 ? '' : `${file}: ${said || status}`));
  });
}

/** Compiles two at a time. @returns the complaints */
async function compileAll(compiler: string[], files: string[]): Promise<string[]> {
  const left = [...files];
  const complaints: string[] = [];
  const work = async () => {
    for (let file = left.pop(); file !== undefined; file = left.pop())
      complaints.push(await compile(compiler, file));
  };
  await Promise.all([work(), work()]);
  return complaints.filter((complaint) => complaint !== '');
}

const files = ['native', 'simulator']
  .flatMap((room) =>
    readdirSync(join(root, room), { recursive: true, encoding: 'utf8' }).map((name) => join(room, name)),
  )
  // The tests' need paths of a build.
  .filter((name) => /\.(cc|h)$/.test(name) && !name.startsWith('native/tests/'));
const addonAPI = dirname(createRequire(import.meta.url).resolve('node-addon-api/package.json'));
const nodeHeaders = join(dirname(dirname(process.execPath)), 'include/node');
/** For the addon; other files don't include these. */
const INCLUDED = [
  `-I${addonAPI}`,
  `-isystem${nodeHeaders}`,
  '-DNAPI_VERSION=8',
  '-DNAPI_DISABLE_CPP_EXCEPTIONS',
];

const unchanged = whyUnchanged(['native', 'simulator', 'test/native-compilers.slow.test.ts']);
const noCompiler = unchanged ?? ((await compile(['c++'], '-')) === '' ? null : 'needs g++');
const noLibcxx = unchanged ?? ((await compile(LIBCXX, '-')) === '' ? null : 'needs clang and libc++-dev');
const because = (reason: string | null) => (reason === null ? '' : ` (${reason})`);

test.skipIf(noCompiler !== null)(
  `native: each header compiles alone${because(noCompiler)}`,
  { timeout: 600_000 },
  async () => {
    const headers = files.filter((name) => name.endsWith('.h'));
    expect(headers.length).toBeGreaterThan(50);
    expect(await compileAll(['c++', '-w', ...INCLUDED], headers)).toEqual([]);
  },
);

test.skipIf(noLibcxx !== null)(
  `native: every source compiles with clang and libc++${because(noLibcxx)}`,
  { timeout: 1200_000 },
  async () => {
    const sources = files.filter((name) => name.endsWith('.cc'));
    expect(sources.length).toBeGreaterThan(80);
    expect(await compileAll([...LIBCXX, ...INCLUDED], sources)).toEqual([]);
  },
);
