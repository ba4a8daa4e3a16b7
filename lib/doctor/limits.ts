import { processIds } from '../platform/index.ts';
import { namesIn, readOrEmpty } from './files.ts';
import type { Report } from './finding.ts';

/** A command's leases are descriptors numbered from 200 on, above what programs use, one for each GPU and a few more. */
const FILES_NEEDED = 200 + 64;
/** What `run` starts, and the threads of Node.js and of looks at the driver, with some to spare. */
const PROCESSES_NEEDED = 64;

/** How many files and processes the kernel allows. */
export function examineLimits(report: Report): void {
  const limits = readOrEmpty('/proc/self/limits');
  const files = hardLimit(limits, 'Max open files');
  const processes = reportProcesses(report, limits);
  if (files < FILES_NEEDED) {
    report.add(
      'limit-files',
      `At most ${files} files may be open here; \`gpu-owner run\` needs numbers from 200 on for its leases, and fails.`,
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
