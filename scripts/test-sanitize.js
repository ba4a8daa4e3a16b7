// Runs the test suites against binaries built with AddressSanitizer and UndefinedBehaviorSanitizer.
//
// Usage: node scripts/test-sanitize.js [FILTER...]     arguments go to vitest
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync, spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { compile } from './test-native.js';

const root = dirname(import.meta.dirname);
const directory = await compile('asan', 'all');
if (directory === undefined) process.exit(1);

// Node.js itself is not instrumented, so the sanitizer's library must be there before anything else.
const library = execFileSync('c++', ['-print-file-name=libasan.so'], { encoding: 'utf8' }).trim();
const { status } = spawnSync(
  process.execPath,
  [join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...process.argv.slice(2)],
  {
    cwd: root,
    stdio: 'inherit',
    env: {
      ...process.env,
      GPU_OWNER_BUILD: directory,
      LD_PRELOAD: library,
      // Node.js doesn't free everything at its end, which is no leak of ours.
      ASAN_OPTIONS: 'detect_leaks=0',
      UBSAN_OPTIONS: 'print_stacktrace=1',
    },
  },
);
process.exitCode = status ?? 1;
