import { accessSync, constants, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { userName } from '../gpus/processes.ts';
import { native, nativeFile } from '../native.ts';
import { simulatedMachine, simulationDirectory } from '../simulation.ts';
import { listWords } from '../text.ts';
import type { Report } from './finding.ts';

const PROGRAMS = {
  'gpu-owner-keeper': '`gpu-owner run` and `hold` fail',
  'gpu-owner-placeholder': 'GPUs of a command are not kept visibly taken while it starts',
};
const SIMULATOR = ['gpu-owner-simulator', 'simulator/libnvidia-ml.so.1', 'simulator/libcuda.so.1'];
const REBUILD =
  'Build it: `npm rebuild gpu-owner` (with npm 12 `npm install-scripts approve gpu-owner` before), or in a clone `npm ci`.';

/** What gpu-owner itself consists of, and who may run it. */
export function examineInstallation(report: Report): void {
  const root = dirname(import.meta.dirname);
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  report.add(
    'version',
    `gpu-owner ${version} in ${root}, Node.js ${process.versions.node} (${process.execPath}), ${process.platform} on ${process.arch}.`,
  );
  const simulated = simulatedMachine();
  if (simulated !== null) {
    report.add(
      'simulated',
      `The GPUs are simulated: machine '${simulated}', whose state is in ${simulationDirectory(simulated)}. Nothing here is about real ones.`,
      'For the real ones: `unset GPU_OWNER_SIMULATE`, and no `--simulate`.',
    );
  }
  try {
    native();
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    const { text, remedy } = sentences(error.message);
    report.add('native-missing', text, remedy ?? REBUILD);
    return;
  }
  for (const [name, without] of Object.entries(PROGRAMS)) {
    const why = whyNotExecutable(nativeFile(name));
    if (why !== null)
      report.add('program-missing', `${nativeFile(name)} ${why}; without it ${without}.`, REBUILD);
  }
  const lacking = simulated === null ? [] : SIMULATOR.map(nativeFile).filter((path) => !exists(path));
  if (lacking.length > 0) {
    report.add(
      'program-missing',
      `${listWords(lacking)} ${lacking.length === 1 ? 'is' : 'are'} missing; without, there are no simulated GPUs.`,
      REBUILD,
    );
  }
  reportPrivacy(report, root);
}

/** What an error says, as what is (its first sentence) and what to do (the others). */
export function sentences(error: string): { text: string; remedy: string | null } {
  const message = error.charAt(0).toUpperCase() + error.slice(1);
  const end = message.search(/\. (?=[A-Z`])/);
  return end < 0
    ? { text: message, remedy: null }
    : { text: message.slice(0, end + 1), remedy: message.slice(end + 2) };
}

function exists(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false }) !== undefined;
}

function whyNotExecutable(path: string): string | null {
  if (!exists(path)) return 'is missing';
  try {
    accessSync(path, constants.R_OK | constants.X_OK);
    return null;
  } catch {
    return 'may not be executed (its mode, or a file system that is mounted noexec)';
  }
}

/** A command for everybody must be one that everybody can read. */
function reportPrivacy(report: Report, root: string): void {
  const files = ['bin/gpu-owner.cjs', 'dist/claim.cjs', 'dist/command.cjs']
    .map((name) => join(root, name))
    .filter(exists);
  for (const file of [...files, nativeFile('gpu_owner.node'), nativeFile('gpu-owner-keeper')].filter(
    exists,
  )) {
    const closed = whatIsClosed(file);
    if (closed === null) continue;
    report.add(
      'installation-private',
      `Other users can't run this gpu-owner: ${closed.path} belongs to ${userName(closed.uid)} with mode ${closed.mode}.`,
      'If it is meant for everybody, put it where all can read it, such as /opt/gpu-owner.',
    );
    return;
  }
}

function whatIsClosed(file: string): { path: string; uid: number; mode: string } | null {
  for (let path = file; ; path = dirname(path)) {
    const { mode, uid } = statSync(path);
    const needed = path === file ? 0o004 : 0o001;
    if ((mode & needed) === 0) return { path, uid, mode: (mode & 0o7777).toString(8).padStart(4, '0') };
    if (path === dirname(path)) return null;
  }
}
