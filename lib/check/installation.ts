import { existsSync, readdirSync, realpathSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { isWSL, whichContainer } from '../gpus/index.ts';
import { native, nativeFile, packageRoot } from '../native.ts';
import { formatMode, isRoot, ownPackage, userName } from '../platform/index.ts';
import type { Report } from './finding.ts';

/** Checks the files of gpu-owner itself, and who may run and change them. */
export function checkInstallation(report: Report): void {
  const root = packageRoot;
  report.add(
    'version',
    `gpu-owner ${ownPackage().version} in ${root}, Node.js ${process.versions.node} (${process.execPath}), ${process.platform} on ${process.arch}${surroundings()}.`,
  );
  const simulated = simulatedMachine();
  if (simulated !== null) {
    report.add(
      'simulated',
      `The GPUs are simulated: machine '${simulated}', whose state is in ${simulationDirectory(simulated)}. The findings are not about real GPUs.`,
      'To check the real GPUs: `unset GPU_OWNER_SIMULATE`, and leave out `--simulate`.',
    );
  }
  native(); // the missing native part has an error of its own
  reportChangeable(report, [...partsOf(root), process.execPath]);
}

/** What isn't an ordinary machine, in words. */
function surroundings(): string {
  const container = whichContainer();
  return `${container === null ? '' : `, in a container (${container})`}${isWSL() ? ', under WSL' : ''}`;
}

/** The files that a start of the command loads and runs. */
function partsOf(root: string): string[] {
  const names = readdirSync(join(root, 'dist')).filter((name) => /\.(?:cjs|cache)$/.test(name));
  return [
    ...['bin/gpu-owner.cjs', ...names.map((name) => join('dist', name))].map((name) => join(root, name)),
    ...['gpu_owner.node', 'gpu-owner-keeper', 'gpu-owner-placeholder'].map(nativeFile),
  ];
}

/** Reports changeable programs: a user who can change a program can act as everybody who runs it. */
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
      `${who} can change what runs as you with this gpu-owner: ${open.path} belongs to ${userName(open.uid)} with mode ${formatMode(open)}.`,
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
