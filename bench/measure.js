// Statistics and printing shared by the benchmarks.
import { mkdtempSync, readFileSync } from 'node:fs';
import { cpus, release } from 'node:os';
import { dirname, join } from 'node:path';
import { build } from 'esbuild';

const root = dirname(import.meta.dirname);

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The middle half, as a measure of spread. */
export function quartiles(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return [sorted[Math.floor(sorted.length / 4)], sorted[Math.floor((sorted.length * 3) / 4)]];
}

export function summarize(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];
  return { n: sorted.length, median: median(sorted), low: at(0.25), high: at(0.75), p99: at(0.99) };
}

export function describe(values, unit, digits = 1) {
  const [low, high] = quartiles(values);
  return `${median(values).toFixed(digits)} ${unit} (${low.toFixed(digits)} to ${high.toFixed(digits)})`;
}

export function machine() {
  return `${cpus().length} x ${cpus()[0].model}, Linux ${release()}, Node.js ${process.versions.node}`;
}

/** The environment for measured processes. */
export function environment(extra) {
  const env = { ...process.env, GPU_OWNER_MACHINE_CONFIG: '/dev/null', ...extra };
  delete env.NODE_EXTRA_CA_CERTS; // read at every start of Node.js, 30 ms
  delete env.CUDA_VISIBLE_DEVICES;
  return env;
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Of a running process and all its threads, in bytes. */
export function peakMemory(pid) {
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;
}

/** What isn't in the package's interface, for benchmarks of a part. @param source a module in lib/ */
export async function bundled(source) {
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const outfile = join(mkdtempSync(join(root, 'build', 'bench-')), 'part.mjs');
  await build({
    stdin: { contents: source, resolveDir: join(root, 'lib'), loader: 'ts' },
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    external: Object.keys(dependencies),
    define: {
      'import.meta.dirname': JSON.stringify(join(root, 'lib')),
      'import.meta.filename': JSON.stringify(join(root, 'lib/index.ts')),
    },
    logLevel: 'silent',
  });
  return import(outfile);
}
