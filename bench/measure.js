// Statistics and printing shared by the benchmarks.
import { cpus, release } from 'node:os';

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
