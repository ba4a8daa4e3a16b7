// Builds the native part's unit tests with cmake-js and runs them: plain, under valgrind, and with sanitizers.
// The programs that they start are those of build/Release; with sanitizers they are compiled, too.
//
// Usage: npm run test:native -- [plain] [valgrind] [asan] [tsan]     default: all of each
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawn, spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(import.meta.dirname);
const require = createRequire(import.meta.url);

// valgrind runs what plain has built
const VARIANTS = {
  plain: { directory: 'build-tests', sanitize: '', programs: 'build/Release' },
  valgrind: { directory: 'build-tests', sanitize: '', programs: 'build/Release' },
  asan: { directory: 'build-asan', sanitize: 'address,undefined' },
  tsan: { directory: 'build-tsan', sanitize: 'thread' },
};
const VALGRIND = [
  'valgrind',
  '--quiet',
  '--error-exitcode=99',
  '--leak-check=full',
  '--show-leak-kinds=definite',
  '--errors-for-leak-kinds=definite',
];

/** Tests of a variant that run side by side: they wait more than they work. */
const AT_A_TIME = 8;
/** Each N-th test is in one part: the tests of a file are of a kind, and those of some files take long. */
const PARTS = 32;

function has(command) {
  return spawnSync(command, ['--version'], { stdio: 'ignore' }).status === 0;
}

/** Compiles a CMake target and what it depends on. @returns the directory that has it; undefined if that failed */
export async function compile(variant, target) {
  const { directory, sanitize, programs = directory } = VARIANTS[variant];
  const path = join(root, directory);
  const cmakeJS = join(dirname(require.resolve('cmake-js/package.json')), 'bin/cmake-js');
  const options = [
    // What runs once takes longer to optimise than to run.
    ...(sanitize === ''
      ? ['--CDCMAKE_BUILD_TYPE=Debug', '--CDCMAKE_CXX_FLAGS_DEBUG=-O0 -g1']
      : ['--CDCMAKE_BUILD_TYPE=RelWithDebInfo']),
    `--CDSANITIZE=${sanitize}`,
    `--CDPROGRAMS=${join(root, programs)}`,
  ];
  const compiler = spawn(
    process.execPath,
    [cmakeJS, 'build', '--parallel', '2', '--target', target, '-O', path, ...options],
    {
      cwd: root,
      stdio: ['ignore', 'ignore', 'inherit'],
    },
  );
  const status = await new Promise((resolve) => compiler.once('close', resolve));
  return status === 0 ? path : undefined;
}

function environment(variant) {
  if (variant === 'asan') {
    return { ASAN_OPTIONS: 'detect_stack_use_after_return=1', UBSAN_OPTIONS: 'print_stacktrace=1' };
  }
  return variant === 'tsan' ? { TSAN_OPTIONS: 'second_deadlock_stack=1' } : {};
}

/** Counts from the lines that native_tests ends with; a program that ends without them has failed. */
function count(output, status) {
  const number = (pattern) => Number([...output.matchAll(pattern)].at(-1)?.[1] ?? 0);
  const failed = number(/^\d+ passed, (\d+) failed/gm);
  return {
    passed: number(/^(\d+) passed, \d+ failed/gm),
    failed: status === 0 ? failed : Math.max(failed, 1),
    skipped: number(/^(\d+) skipped$/gm),
  };
}

function add(total, counts) {
  for (const key of Object.keys(total)) total[key] += counts[key];
}

function whyNot(variant) {
  return variant === 'valgrind' && !has('valgrind') ? 'valgrind is not installed' : null;
}

function runPart(variant, part, directory) {
  // ThreadSanitizer wants its memory where a randomised layout may have put something else.
  const prefix = { valgrind: VALGRIND, tsan: has('setarch') ? ['setarch', '-R'] : [] }[variant] ?? [];
  const [file, ...args] = [...prefix, join(directory, 'native_tests'), '--part', part];
  return new Promise((resolve) => {
    const child = spawn(file, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      cwd: directory,
      env: { ...process.env, ...environment(variant) },
      timeout: 600_000,
    });
    let stdout = '';
    let all = '';
    child.stdout.setEncoding('utf8').on('data', (text) => {
      stdout += text;
      all += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text) => {
      all += text;
    });
    child.once('error', ({ message }) => {
      all += `${message}\n`;
    });
    child.once('close', (status, signal) => {
      if (status !== 0) console.error(`${all}${variant}: native_tests ended with ${signal ?? status}`);
      resolve(count(stdout, status));
    });
  });
}

async function testVariant(variant, directory) {
  const total = { passed: 0, failed: 0, skipped: 0 };
  if (directory === undefined) return { ...total, failed: 1 };
  const left = Array.from({ length: PARTS }, (_, part) => `${part}/${PARTS}`);
  const work = async () => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      add(total, await runPart(variant, next, directory));
    }
  };
  await Promise.all(Array.from({ length: AT_A_TIME }, work));
  return total;
}

/** @returns how many tests of these variants passed, failed and were left out, after printing a line for each variant */
export async function testNative(variants) {
  const total = { passed: 0, failed: 0, skipped: 0 };
  for (const tool of ['cmake', 'c++']) {
    if (!has(tool)) {
      console.log(
        `native tests: skipped, ${tool} is not installed (Debian, Ubuntu: apt-get install cmake g++)`,
      );
      return { ...total, skipped: variants.length };
    }
  }
  // Compiling is all work, and tests mostly wait: while those of a variant run, the next ones are compiled.
  let compiled = Promise.resolve();
  let tested = Promise.resolve();
  for (const variant of variants) {
    const reason = whyNot(variant);
    if (reason === null) compiled = compiled.then(() => compile(variant, 'native_tests'));
    const build = compiled;
    tested = tested.then(async () => {
      const directory = await build;
      const started = Date.now();
      const counts =
        reason === null ? await testVariant(variant, directory) : { passed: 0, failed: 0, skipped: 1 };
      add(total, counts);
      const seconds = ((Date.now() - started) / 1000).toFixed(0);
      const { passed, failed, skipped } = counts;
      const outcome = `${passed} passed, ${failed} failed, ${skipped} skipped in ${seconds} s`;
      console.log(`native tests (${variant}): ${reason ? `skipped, ${reason}` : outcome}`);
    });
  }
  await tested;
  return total;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const asked = process.argv.slice(2);
  const unknown = asked.find((variant) => VARIANTS[variant] === undefined);
  if (unknown !== undefined) throw new Error(`${unknown}: not one of ${Object.keys(VARIANTS).join(', ')}`);
  const { status } = spawnSync(process.execPath, [join(root, 'scripts/install.js')], { stdio: 'inherit' });
  if (status !== 0) process.exit(1);
  const { failed } = await testNative(asked.length > 0 ? asked : Object.keys(VARIANTS));
  process.exitCode = failed > 0 ? 1 : 0;
}
