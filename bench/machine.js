// The conditions of the figures: the machine, its load, and the versions of what is measured.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { arch, cpus, loadavg, release, totalmem } from 'node:os';
import { dirname, join } from 'node:path';
import { realDriver } from './real.js';

const root = dirname(import.meta.dirname);

export function machine() {
  const driver = realDriver();
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  return {
    processor:
      cpus()[0]
        ?.model.replace(/\((R|TM)\)/g, '')
        .trim() ?? 'unknown',
    processors: cpus().length,
    architecture: arch(),
    memoryGB: Math.round(totalmem() / 1e9),
    kernel: release(),
    node: process.versions.node,
    gpuOwner: version,
    commit: commit(),
    driver: driver.available ? driver.version : null,
    gpus: driver.available ? driver.gpus : [],
  };
}

/** The three averages of the kernel: over 1, 5 and 15 minutes. */
export function load() {
  return loadavg().map((value) => Math.round(value * 100) / 100);
}

function commit() {
  const git = (...args) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });
  const { status, stdout } = git('rev-parse', '--short=12', 'HEAD');
  if (status !== 0) return null;
  const changed = git('status', '--porcelain', '--untracked-files=no', '--', 'lib', 'native', 'bin', 'bench');
  return stdout.trim() + (changed.stdout === '' ? '' : ' with changes');
}

/** One line for people. */
export function machineText({ processor, processors, kernel, node, gpuOwner, driver, gpus }) {
  const gpu = driver === null ? 'no NVIDIA driver' : `NVIDIA driver ${driver}, ${counted(gpus)}`;
  return `${processors} × ${processor}, Linux ${kernel}, Node.js ${node}, gpu-owner ${gpuOwner}, ${gpu}`;
}

function counted(names) {
  return [...new Set(names)]
    .map((name) => `${names.filter((each) => each === name).length} × ${name}`)
    .join(', ');
}
