import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { binaries } from './binaries.ts';
import { root } from './machine.ts';

/** The environment of programs that ask a registry. */
export const registryEnv = { ...process.env, NODE_EXTRA_CA_CERTS: process.env.GPU_OWNER_TEST_CA_CERTS };

/**
 * Installs packages of npm once per machine.
 * @param name the directory's, which says the versions @returns where they are; null: npm can't install them
 */
export function installOnce(name: string, packages: string[]): string | null {
  const directory = join(tmpdir(), `gpu-owner-${name}`);
  const installed = join(directory, 'node_modules');
  if (existsSync(directory)) return installed;
  const fresh = `${directory}.${process.pid}`;
  mkdirSync(fresh);
  const words = ['install', '--prefix', fresh, '--ignore-scripts', '--no-audit', '--no-fund', '--silent'];
  const { status } = spawnSync('npm', [...words, ...packages], { env: registryEnv, timeout: 120_000 });
  try {
    if (status === 0) renameSync(fresh, directory);
  } catch (error) {
    if (!existsSync(directory)) throw error; // another run of the tests was quicker
  }
  rmSync(fresh, { recursive: true, force: true });
  return status === 0 ? installed : null;
}

/** Packing compresses Node.js three times. */
const TIMEOUT_MS = 280_000;

/** Makes packages of the binaries under test and of dist/, little compressed. */
export function pack(to: string, kinds: string[], sources = root): void {
  const from = ['--binaries', binaries(), '--arch', process.arch, '--quick', '--out', to];
  execFileSync(process.execPath, [join(sources, 'scripts/package.js'), ...from, ...kinds], {
    env: registryEnv,
    stdio: 'pipe',
    timeout: TIMEOUT_MS,
  });
}

/** A copy of the sources that a test may change, with links to what was made from them. */
export function cloneSources(to: string, linked = ['node_modules']): void {
  const made = /^(node_modules|build.*|dist|prebuilds|release|\.git)$/;
  cpSync(root, to, { recursive: true, filter: (path) => !made.test(relative(root, path)) });
  for (const path of linked) symlinkSync(join(root, path), join(to, path));
}
