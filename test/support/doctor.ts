import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { Finding } from '../../lib/check/finding.ts';
import type { Machine, Starting } from './machine.ts';

export const noMounts =
  process.getuid?.() !== 0
    ? 'needs root, to mount file systems'
    : spawnSync('unshare', ['-m', 'sh', '-c', 'mount -t tmpfs -o size=64k tmpfs /mnt']).status === 0
      ? null
      : 'mounting in a namespace of its own is not permitted here';
export const noCompiler = spawnSync('cc', ['--version']).status === 0 ? null : 'needs a C compiler (cc)';

/** For titles: why a test is skipped. */
export function because(...reasons: (string | null)[]): string {
  const found = reasons.filter((reason) => reason !== null);
  return found.length === 0 ? '' : ` (${found.join(', ')})`;
}

export interface Diagnosis {
  code: number | null;
  findings: Finding[];
  /** Findings that are worse than ok, and not caused by the clone on which tests run. */
  ids: string[];
  stderr: string;
}

/** Runs the doctor in a process of its own. */
export async function diagnose(
  machine: Machine,
  starting: Starting = {},
  args: string[] = [],
): Promise<Diagnosis> {
  const { code, stdout, stderr } = await machine.runCommand(['doctor', '--json', ...args], starting);
  return diagnosisOf(code, stdout, stderr);
}

/** As diagnose(), by one check of the doctor's alone: one process, and not two. */
export async function diagnosePart(
  machine: Machine,
  part: 'installation' | 'configuration' | 'lock-directory' | 'gpus',
  starting: Starting = {},
): Promise<Diagnosis> {
  const { code, stdout, stderr } = await machine.runCommand(
    ['check-part', 'doctor', `--only=${part}`],
    starting,
  );
  return diagnosisOf(code, stdout, stderr);
}

export const diagnoseLocks = (machine: Machine, starting?: Starting) =>
  diagnosePart(machine, 'lock-directory', starting);

/** @param stdout the findings of `doctor --json`, or what `check-part doctor` tells the doctor */
export function diagnosisOf(code: number | null, stdout: string, stderr: string): Diagnosis {
  const isPart = stdout.startsWith('{"begun":') && stdout.endsWith('{"done":true}\n');
  let findings: Finding[];
  try {
    findings = isPart
      ? stdout
          .trim()
          .split('\n')
          .flatMap((line) => JSON.parse(line).finding ?? [])
      : JSON.parse(stdout);
  } catch {
    throw new Error(`no JSON, exit code ${code}: ${stdout}${stderr}`);
  }
  const ids = findings.filter(({ level, id }) => level !== 'ok' && id !== 'simulated').map(({ id }) => id);
  const hasProblem = findings.some(({ level }) => level === 'problem');
  return { code: isPart && code === 0 && hasProblem ? 1 : code, findings, ids, stderr };
}

/** The text and remedy of a finding that must be there. */
export function said({ findings }: Diagnosis, id: string): string {
  const found = findings.filter((each) => each.id === id);
  if (found.length === 0) throw new Error(`no ${id} in ${findings.map((each) => each.id).join()}`);
  return found.map(({ text, remedy }) => `${text} -> ${remedy}`).join('\n');
}

/** Compiles a library for LD_PRELOAD. */
export function compile(machine: Machine, source: string): string {
  const library = join(machine.directory, 'shim.so');
  compileLibrary(source, library);
  return library;
}

export function compileLibrary(source: string, library: string, options: string[] = []): void {
  const words = ['-shared', '-fPIC', '-o', library, ...options, source, '-ldl', '-lpthread'];
  const { status, stderr } = spawnSync('cc', words, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}
