import { GPUOwnerError } from '../errors.ts';
import { formatDuration, isRunnable, sanitize } from '../platform/index.ts';
import { CHECKS, type CheckName, checksThatNeed, type Message } from './checks.ts';
import type { Machine } from './context.ts';
import { type Finding, failure, finding, REPORT_IT } from './finding.ts';
import { messageIn, Subprocess } from './subprocess.ts';

/** After this time, people are told what takes so long. */
const NOTICE_MS = 3_000;
/** For a process to be started, on a machine that is overloaded. */
const START_TIMEOUT_MS = 60_000;
/** For a check that hangs nowhere: it computes, or a busy machine gives it no processor. */
const MAX_BUSY_MS = 30_000;
/** A shorter silence at the end of all time is no sign of a hang. */
const MIN_SILENCE_MS = 1_000;
const MAX_ERRORS = 1_000;

interface Listener {
  /** The check that has failed if the process says nothing. */
  first?: CheckName;
  onFinding: (found: Finding) => void;
  /** Is told what takes longer than a few seconds. */
  onSlow?: (doing: string) => void;
  /** Is told what is claimed. */
  onMachine?: (machine: Machine) => void;
  /** How long the process may take until it says something, in ms. */
  startTimeoutMs?: number;
  /** How much time is left for all checks, in ms. */
  left?: () => number;
}

/**
 * Listens to a process that makes checks, and gives up on it where one hangs in the kernel: then only that process does.
 * @returns the check that was not finished; null: there is none
 */
export async function listen(
  program: Subprocess,
  {
    first,
    onFinding,
    onSlow = () => {},
    onMachine = () => {},
    startTimeoutMs = START_TIMEOUT_MS,
    left = () => Number.POSITIVE_INFINITY,
  }: Listener,
): Promise<CheckName | null> {
  let checking: CheckName | null = first ?? null;
  let doing = '';
  let limit: number | null = null;
  let busyUntil = Number.POSITIVE_INFINITY;
  const notice = setTimeout(() => onSlow(doing || `checking: ${checking}`), NOTICE_MS);
  try {
    for (;;) {
      const most = Math.min(limit ?? startTimeoutMs, Math.max(0, left()));
      const line = await program.line(most);
      if (line === null) {
        if (!program.isOver && left() > 0) {
          busyUntil = Math.min(busyUntil, performance.now() + MAX_BUSY_MS);
          if (performance.now() < busyUntil && isRunnable(program.pid)) continue;
        }
        const isSilent = program.isOver || most >= Math.min(limit ?? startTimeoutMs, MIN_SILENCE_MS);
        if (checking !== null && isSilent)
          onFinding(program.isOver ? await crashed(checking, doing, program) : hung(checking, doing, most));
        return checking;
      }
      busyUntil = Number.POSITIVE_INFINITY;
      notice.refresh();
      const message = messageIn<Message>(line);
      if (message === null) continue; // not ours: a library of the driver's prints as well
      if ('begun' in message) {
        checking = message.begun;
        doing = '';
        limit = CHECKS[checking].timeoutMs;
      } else if ('step' in message) {
        doing = message.step;
        limit = message.timeoutMs;
      } else if ('finding' in message) onFinding(message.finding);
      else if ('machine' in message) {
        limit = START_TIMEOUT_MS;
        onMachine(message.machine);
      } else if ('done' in message) return null;
    }
  } finally {
    clearTimeout(notice);
  }
}

function hung(name: CheckName, doing: string, limit: number): Finding {
  const { needs } = CHECKS[name];
  const text = `No answer within ${formatDuration(limit)}${doing === '' ? '' : ` while ${doing}`}.`;
  return needs === 'nothing'
    ? finding(
        'check-hangs',
        'problem',
        name,
        `${text} Claims hang there, too.`,
        'A device or a file system (a network disk?) has failed: see `dmesg`.',
      )
    : finding(
        name,
        'problem',
        name,
        text,
        'See `dmesg | grep -i nvrm`: a GPU or its driver may hang. If it is only slow, use a longer --timeout.',
      );
}

async function crashed(name: CheckName, doing: string, program: Subprocess): Promise<Finding> {
  const { code, signal, stderr } = await program.ended;
  const end = `its process ended with ${signal ?? `exit code ${code}`}`;
  if (CHECKS[name].needs !== 'nothing')
    return finding(name, 'problem', name, `The check failed: ${end}.`, REPORT_IT);
  const outcome = sanitize(stderr.slice(-MAX_ERRORS).trim()) || end;
  const when = doing === '' ? '' : `, while ${doing}`;
  return failure(name, new GPUOwnerError('ERR_INTERNAL', outcome + when));
}

/**
 * Makes the checks of the doctor. Takes no lock that another process could meet, but starts the driver as a claim does, and CUDA on free
 * GPUs. Writes nothing, except what CUDA says there. Never throws, however broken what it looks at is; takes a second as a rule.
 *
 * @param command the words that start this program again, up to its own arguments
 * @param onSlow is told what takes longer than a few seconds
 */
export async function diagnose(
  command: readonly string[],
  onSlow: (doing: string) => void,
): Promise<Finding[]> {
  const findings: Finding[] = [];
  const onFinding = (found: Finding) => {
    // Several checks meet an error of the configuration, or of the installation.
    if (!findings.some(({ id, text }) => id === found.id && text === found.text)) findings.push(found);
  };
  let names = checksThatNeed('nothing');
  for (let first = names[0]; first !== undefined; first = names[0]) {
    // In this session: Ctrl-C ends it.
    const program = new Subprocess([...command, 'check-part', 'doctor', `--only=${names.join()}`], {
      hasSession: false,
    });
    const unfinished = await listen(program, { first, onFinding, onSlow });
    await program.abandon(); // a thread that is stuck in the driver may keep it from ending
    // Messages of a library of the driver, or of the simulator.
    if (unfinished === null) process.stderr.write(program.errors.slice(-MAX_ERRORS));
    names = unfinished === null ? [] : names.slice(names.indexOf(unfinished) + 1);
  }
  return findings;
}
