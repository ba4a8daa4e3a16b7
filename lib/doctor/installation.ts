import {
  accessSync,
  constants,
  existsSync,
  readdirSync,
  readFileSync,
  realpathSync,
  statSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { isRoot, listWords, userName } from '../platform/index.ts';
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
  const parts = partsOf(root);
  reportPrivacy(report, parts);
  reportChangeable(report, [...parts, process.execPath]);
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

/** What a start of the command loads and runs. */
function partsOf(root: string): string[] {
  const names = readdirSync(join(root, 'dist')).filter((name) => /\.(?:cjs|cache)$/.test(name));
  return [
    ...['bin/gpu-owner.cjs', ...names.map((name) => join('dist', name))].map((name) => join(root, name)),
    ...['gpu_owner.node', 'gpu-owner-inherited', ...Object.keys(PROGRAMS)].map(nativeFile),
  ].filter(exists);
}

/** A command for everybody must be one that everybody can read. */
function reportPrivacy(report: Report, parts: readonly string[]): void {
  for (const file of parts) {
    const closed = upwards(file, ({ path, mode }) => (mode & (path === file ? 0o004 : 0o001)) === 0);
    if (closed === null) continue;
    report.add(
      'installation-private',
      `Other users can't run this gpu-owner: ${closed.path} belongs to ${userName(closed.uid)} with mode ${octal(closed.mode)}.`,
      'If it is meant for everybody, put it where all can read it, such as /opt/gpu-owner.',
    );
    return;
  }
}

/** Whoever can change a program can act as everybody who runs it. */
function reportChangeable(report: Report, parts: readonly string[]): void {
  const self = process.geteuid?.();
  for (const file of parts) {
    if (!existsSync(file)) continue; // replaced by another since this process started
    const open = upwards(realpathSync(file), ({ mode, uid, sticky }) => {
      return !(uid === self || isRoot(uid)) || ((mode & 0o002) !== 0 && !sticky);
    });
    if (open === null) continue;
    const who = (open.mode & 0o002) !== 0 && !open.sticky ? 'Everybody' : userName(open.uid);
    report.add(
      'installation-changeable',
      `${who} can change what runs as you with this gpu-owner: ${open.path} belongs to ${userName(open.uid)} with mode ${octal(open.mode)}.`,
      'Use one that only root (or you) can write to, such as a root-owned /opt/gpu-owner: `chown -R root` and `chmod -R go-w`.',
    );
    return;
  }
}

interface Part {
  path: string;
  uid: number;
  mode: number;
  /** A directory in which only owners may rename and remove. */
  sticky: boolean;
}

/** The first of a file and the directories above it that is so. */
function upwards(file: string, isSo: (part: Part) => boolean): Part | null {
  for (let path = file; ; path = dirname(path)) {
    const stat = statSync(path);
    const part = {
      path,
      uid: stat.uid,
      mode: stat.mode,
      sticky: stat.isDirectory() && (stat.mode & 0o1000) !== 0,
    };
    if (isSo(part)) return part;
    if (path === dirname(path)) return null;
  }
}

function octal(mode: number): string {
  return (mode & 0o7777).toString(8).padStart(4, '0');
}
