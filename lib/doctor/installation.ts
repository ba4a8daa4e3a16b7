import { accessSync, constants, existsSync, readdirSync, realpathSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { simulatedMachine, simulationDirectory } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile, packageRoot } from '../native.ts';
import { formatMode, isRoot, listWords, ownPackage, processIds, userName } from '../platform/index.ts';
import type { Report } from './finding.ts';
import { readOrEmpty } from './system.ts';

const PROGRAMS = {
  'gpu-owner-keeper': '`gpu-owner run` and `hold` fail',
  'gpu-owner-placeholder': 'GPUs of a command are not kept visibly taken while it starts',
};
const SIMULATOR = [
  'gpu-owner-simulator',
  'simulator/libnvidia-ml.so.1',
  'simulator/libcuda.so.1',
  'simulator/bin/nvidia-smi',
];
const REBUILD = 'Install gpu-owner again; in a clone, run `npm ci`.';

/** Checks the files of gpu-owner itself, and who may run and change them. */
export function checkInstallation(report: Report): void {
  const root = packageRoot;
  report.add(
    'version',
    `gpu-owner ${ownPackage().version} in ${root}, Node.js ${process.versions.node} (${process.execPath}), ${process.platform} on ${process.arch}.`,
  );
  const simulated = simulatedMachine();
  if (simulated !== null) {
    report.add(
      'simulated',
      `The GPUs are simulated: machine '${simulated}', whose state is in ${simulationDirectory(simulated)}. The findings are not about real GPUs.`,
      'To check the real GPUs: `unset GPU_OWNER_SIMULATE`, and leave out `--simulate`.',
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
      `${listWords(lacking)} ${lacking.length === 1 ? 'is' : 'are'} missing; without them, there are no simulated GPUs.`,
      REBUILD,
    );
  }
  const parts = partsOf(root);
  reportPrivacy(report, parts);
  reportChangeable(report, [...parts, process.execPath]);
}

/** Splits an error's message into the problem (its first sentence) and the remedy (the others). */
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

/** The files that a start of the command loads and runs. */
function partsOf(root: string): string[] {
  const names = readdirSync(join(root, 'dist')).filter((name) => /\.(?:cjs|cache)$/.test(name));
  return [
    ...['bin/gpu-owner.cjs', ...names.map((name) => join('dist', name))].map((name) => join(root, name)),
    ...['gpu_owner.node', ...Object.keys(PROGRAMS)].map(nativeFile),
  ].filter(exists);
}

/** A command for everybody must be one that everybody can read. */
function reportPrivacy(report: Report, parts: readonly string[]): void {
  for (const file of parts) {
    const closed = upwards(file, ({ path, mode }) => (mode & (path === file ? 0o004 : 0o001)) === 0);
    if (closed === null) continue;
    report.add(
      'installation-private',
      `Other users can't run this gpu-owner: ${closed.path} belongs to ${userName(closed.uid)} with mode ${formatMode(closed)}.`,
      'To let all users run it, install it in a directory that they can read, such as /opt/gpu-owner.',
    );
    return;
  }
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

/** A command's leases are descriptors numbered from 200 on, above what programs use, one for each GPU and a few more. */
const FILES_NEEDED = 200 + 64;
/** Processes that `run` starts, and threads of Node.js and the driver, with some to spare. */
const PROCESSES_NEEDED = 64;

/** How many files and processes the kernel allows. */
export function checkLimits(report: Report): void {
  const limits = readOrEmpty('/proc/self/limits');
  const files = hardLimit(limits, 'Max open files');
  const processes = reportProcesses(report, limits);
  if (files < FILES_NEEDED) {
    report.add(
      'limit-files',
      `At most ${files} files may be open here; \`gpu-owner run\` fails, because it keeps its leases in descriptors from 200 on.`,
      'Raise the hard limit to 1024 or more: `LimitNOFILE=` of the service, /etc/security/limits.conf, or `docker run --ulimit nofile=65536`.',
    );
  }
  if (files >= FILES_NEEDED && processes !== null) {
    const left = Number.isFinite(processes)
      ? `${processes} more processes and threads`
      : 'any number of processes';
    report.add(
      'limits',
      `Limits allow ${Number.isFinite(files) ? files : 'any number of'} open files and ${left}.`,
    );
  }
}

/** The limit that can't be exceeded: Node.js raises its own up to that. */
function hardLimit(limits: string, name: string): number {
  const [, hard] = new RegExp(`^${name} +\\S+ +(\\S+)`, 'm').exec(limits) ?? [];
  return hard === undefined || hard === 'unlimited' ? Number.POSITIVE_INFINITY : Number(hard);
}

/** How many more there may be; null: too few, which has been said. */
function reportProcesses(report: Report, limits: string): number | null {
  const uid = process.getuid?.() ?? 0;
  // Root isn't held to its own limit.
  const [, soft] = uid === 0 ? [] : (/^Max processes +(\S+)/m.exec(limits) ?? []);
  const candidates = [
    {
      left:
        soft === undefined || soft === 'unlimited' ? Number.POSITIVE_INFINITY : Number(soft) - threadsOf(uid),
      what: `of the ${soft} processes and threads that this user may have (ulimit -u)`,
      remedy: 'End some, or have an administrator raise `nproc` in /etc/security/limits.conf.',
    },
    ...groupsOfProcesses(),
  ];
  const scarcest = candidates.reduce((a, b) => (b.left < a.left ? b : a));
  if (scarcest.left >= PROCESSES_NEEDED) return scarcest.left;
  report.add(
    'limit-processes',
    `Only ${Math.max(0, scarcest.left)} ${scarcest.what} are left; gpu-owner and what it starts may fail.`,
    scarcest.remedy,
  );
  return null;
}

/** The limits of the control groups that this process is in, where they are mounted in the usual place. */
function groupsOfProcesses(): { left: number; what: string; remedy: string }[] {
  const groups = [];
  for (const line of readOrEmpty('/proc/self/cgroup').split('\n')) {
    const [, controllers, path] = line.split(':');
    if (path === undefined || (controllers !== '' && controllers !== 'pids')) continue;
    const base = controllers === '' ? '/sys/fs/cgroup' : '/sys/fs/cgroup/pids';
    for (const directory of [`${base}${path}`, base]) {
      const most = Number.parseInt(readOrEmpty(`${directory}/pids.max`), 10); // 'max' is none
      const now = Number.parseInt(readOrEmpty(`${directory}/pids.current`), 10);
      if (Number.isNaN(most) || Number.isNaN(now)) continue;
      groups.push({
        left: most - now,
        what: `of the ${most} processes and threads of this control group (pids.max)`,
        remedy: 'End some, or raise it: `TasksMax=` of the service, or `docker run --pids-limit`.',
      });
      break;
    }
  }
  return groups;
}

function threadsOf(uid: number): number {
  let threads = 0;
  for (const pid of processIds()) {
    const status = readOrEmpty(`/proc/${pid}/status`);
    if (new RegExp(`^Uid:\\t${uid}\\t`, 'm').test(status)) {
      threads += Number(/^Threads:\t(\d+)/m.exec(status)?.[1] ?? 1);
    }
  }
  return threads;
}
