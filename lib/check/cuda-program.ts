import { readdirSync } from 'node:fs';
import { computePids, describeListedProcess, type GPU, hasPidNamespace, label } from '../gpus/index.ts';
import { formatBytes, listWords, now, readLink, sleep, TIMEOUTS } from '../platform/index.ts';
import { AFTER_CRASHES, fail, type RunCheck, SEE_STATUS, skip } from './check.ts';
import { type Context, cudaProgram, digitsOf, lookAt, milliseconds, sameIn } from './context.ts';
import { queryProcesses } from './nvidia-smi.ts';
import { runProgram, Subprocess } from './subprocess.ts';

/** Runs a command that prints the GPUs which CUDA shows to it. @returns the digits of their UUIDs, in CUDA's order */
export async function cudaDevices(words: readonly string[]): Promise<string[]> {
  const { code, signal, stdout, stderr } = await runProgram(words, 50_000);
  if (code === 0) return stdout.split('\n').filter(Boolean).map(digitsOf);
  // The message would name users and their commands.
  const refusal = /"code":"(ERR_\w+)"/.exec(stderr)?.[1];
  if (refusal !== undefined) fail(`A claim of free GPUs fails (${refusal}).`, SEE_STATUS);
  return fail(
    `CUDA does not start: ${stdout.trim() || stderr.trim().split('\n').at(-1) || `exit code ${signal ?? code}`}.`,
    'Run `gpu-owner doctor`: it looks for the CUDA library.',
  );
}

const START_TIMEOUT_MS = 60_000;
/** How long a driver may take to list a process that has a context. */
const MAX_LISTING_MS = 2_000;
/** How long a claim waits for remains of a dead process. */
const MAX_FORGETTING_MS = 2_000;
const POLL_MS = 5;
const MiB = 2 ** 20;
/** More than a driver's own fluctuation, less than a context. */
export const SLACK_BYTES = 32 * MiB;

/** Makes the checks about one CUDA program: who sees it, what it has open, and what is left of it after kill -9. */
export async function checkCudaProgram({ runCheck, gpus }: Context): Promise<void> {
  const look = () => lookAt(gpus);
  const before = look();
  const began = now();
  const program = new Subprocess(cudaProgram(gpus));
  const whileItRuns: RunCheck = (name, run) =>
    runCheck(name, () => (hasStarted ? run() : skip('the CUDA program does not start (see cuda-listed)')));
  let listed: Listing | null = null;
  let hasStarted = false;
  await runCheck('cuda-listed', async () => {
    const watched = await watchStart(program, began, before, look);
    hasStarted = true;
    listed = watched.listing;
    return tellStart(watched, before);
  });
  await whileItRuns('cuda-memory', () => checkMemory(before, look()));
  await whileItRuns('nvidia-smi-processes', () => checkNvidiaSmi(look, program.pid));
  await whileItRuns('cuda-files', () => checkFiles(program.pid));
  await whileItRuns('cuda-killed', () => checkKilled(program, before, look, listed));
}

/** own: by its PID on every GPU; other: each GPU has a new process, by another PID. */
type Listing = 'own' | 'other';

export function listingOf(pid: number, before: readonly GPU[], after: readonly GPU[]): Listing | null {
  const news = after.map((gpu) => newPids(before, gpu));
  if (news.every((pids) => pids.includes(pid))) return 'own';
  return news.every((pids) => pids.length > 0) ? 'other' : null;
}

/** The processes on a GPU that weren't there before. */
export function newPids(before: readonly GPU[], gpu: GPU): number[] {
  const known = before.filter(({ uuid }) => uuid === gpu.uuid).flatMap(computePids);
  return computePids(gpu).filter((pid) => !known.includes(pid));
}

interface WatchedStart {
  readyMs: number;
  listedMs: number | null;
  listing: Listing | null;
}

async function watchStart(
  program: Subprocess,
  began: number,
  before: readonly GPU[],
  look: () => GPU[],
): Promise<WatchedStart> {
  let readyMs: number | null = null;
  let listedMs: number | null = null;
  let listing: Listing | null = null;
  for (;;) {
    const line =
      readyMs === null ? await program.line(POLL_MS) : await program.line(POLL_MS).then(() => null);
    if (line?.startsWith('ready')) readyMs = now() - began;
    else if (line !== null)
      fail(`A CUDA program fails on the claimed GPUs: ${line}`, 'Run `gpu-owner doctor`.');
    const found = listingOf(program.pid, before, look());
    if (found !== null) {
      listedMs ??= now() - began;
      listing = found;
    }
    if (readyMs !== null && (listing !== null || now() - began - readyMs > MAX_LISTING_MS))
      return { readyMs, listedMs, listing };
    if (readyMs === null && now() - began > START_TIMEOUT_MS)
      fail(
        `A CUDA program is not ready after ${milliseconds(START_TIMEOUT_MS)}.`,
        'See `dmesg | grep -i nvrm`.',
      );
  }
}

function tellStart({ readyMs, listedMs, listing }: WatchedStart, before: readonly GPU[]): string {
  const start = `CUDA starts in ${milliseconds(readyMs)}`;
  if (before.every(({ processes }) => processes === null))
    skip(`${start}, but the driver lists no processes, as under WSL`);
  if (listing === null || listedMs === null) {
    fail(
      `${start}, but the driver does not list the process on its GPUs ${milliseconds(MAX_LISTING_MS)} later.`,
      'Programs that only ask the driver do not see who uses a GPU, so use claims for all. In a container, try `--pid=host`.',
    );
  }
  const when = `the driver lists it ${milliseconds(listedMs)} after its start`;
  if (listing === 'own') return `${start}; ${when}, by its own PID.`;
  if (hasPidNamespace()) return `${start}; ${when}, by another PID, as drivers may in a PID namespace.`;
  return fail(`${start}; ${when}, but by a PID that is not its own.`);
}

/**
 * By how much the memory in use has risen, in bytes. Processes that have ended meanwhile, such as a placeholder, don't count.
 * null: unknown.
 */
export function memoryIncrease(before: GPU | undefined, after: GPU): number | null {
  const [old, current] = [before?.memory.usedBytes ?? null, after.memory.usedBytes];
  if (old === null || current === null) return null;
  const left = (after.processes ?? []).map(({ pid }) => pid);
  const ended = (before?.processes ?? []).filter(({ pid }) => !left.includes(pid));
  const freed = ended.map(({ usedBytes }) => usedBytes ?? Number.NaN).reduce((sum, bytes) => sum + bytes, 0);
  return Number.isNaN(freed) ? null : current - old + freed;
}

/** A context takes more than the 100 MiB that count as idle: so programs that aren't listed are noticed, too. */
function checkMemory(before: readonly GPU[], after: readonly GPU[]): string {
  const rises = after.map((gpu, i) => ({ gpu, bytes: memoryIncrease(before[i], gpu) }));
  const known = rises.flatMap(({ gpu, bytes }) => (bytes === null ? [] : [{ gpu, bytes }]));
  if (known.length === 0) skip('the driver does not tell how much memory is in use');
  const small = known.filter(({ bytes }) => bytes < 100 * MiB);
  if (small.length > 0) {
    fail(
      `A CUDA context takes ${listWords(small.map(({ gpu, bytes }) => `${formatBytes(bytes)} on GPU ${label(gpu)}`))}, less than the 100 MiB that count as idle.`,
      'Programs in other containers, which the driver may not list, can look idle: claim with a smaller `--max-used-memory`.',
    );
  }
  return `A CUDA context takes ${listWords(known.map(({ gpu, bytes }) => `${formatBytes(bytes)} on GPU ${label(gpu)}`))}.`;
}

/** How often two lists are compared: a process may come or go between them, as the placeholder of the job around. */
const MAX_COMPARISONS = 5;

/** nvidia-smi lists the same compute processes. */
export async function checkNvidiaSmi(look: () => GPU[], pid: number): Promise<string> {
  const inOrder = (pids: readonly number[] = []) => [...pids].sort((a, b) => a - b).join(', ');
  let wholes: GPU[] = [];
  let listed: Awaited<ReturnType<typeof queryProcesses>> = new Map();
  let wrong: GPU[] = [];
  for (let comparisons = 0; comparisons < MAX_COMPARISONS; comparisons++) {
    wholes = look().filter(({ instance }) => instance === null);
    if (wholes.length === 0) skip('nvidia-smi lists the processes of MIG instances by their GPU');
    listed = await queryProcesses();
    wrong = wholes.filter((gpu) => inOrder(listed.get(gpu.uuid)) !== inOrder(computePids(gpu)));
    if (wrong.length === 0) break;
  }
  if (wrong.length > 0) {
    const tell = (gpu: GPU) =>
      `GPU ${label(gpu)}: ${inOrder(listed.get(gpu.uuid)) || 'none'} in nvidia-smi, ${inOrder(computePids(gpu)) || 'none'} here`;
    fail(
      `nvidia-smi lists other compute processes (a CUDA program with pid ${pid} runs): ${wrong.map(tell).join('; ')}.`,
    );
  }
  const sees = wholes.every((gpu) => listed.get(gpu.uuid)?.includes(pid));
  return sees ? 'nvidia-smi lists the same PIDs.' : 'nvidia-smi lists the same processes.';
}

/** gpu-owner recognises a process that uses the driver by the files that it has open. */
function checkFiles(pid: number): string {
  const directory = `/proc/${pid}/fd`;
  const paths = readdirSync(directory).map((descriptor) => readLink(`${directory}/${descriptor}`) ?? '');
  const devices = [
    ...new Set(paths.filter((path) => /^\/dev\/(nvidia|dri|dxg|nvhost|nvmap|nvgpu)/.test(path))),
  ].sort();
  const text = `A CUDA process has open: ${devices.length === 0 ? 'no device of the driver' : devices.join(', ')}`;
  const { alive, name } = describeListedProcess(pid);
  if (alive !== 'alive' || name === null) {
    fail(
      `${text}. gpu-owner does not recognise it as one that uses the driver, and takes it for a process of another container.`,
    );
  }
  return `${text}, and ${paths.length - devices.length} other files.`;
}

/** After kill -9, the driver forgets the process while a claim waits for that. */
async function checkKilled(
  program: Subprocess,
  before: readonly GPU[],
  look: () => GPU[],
  listing: Listing | null,
): Promise<string> {
  const began = now();
  program.kill('SIGKILL');
  let listedMs: number | null = listing === null ? 0 : null;
  let memoryMs: number | null = null;
  while ((listedMs === null || memoryMs === null) && now() - began < TIMEOUTS.forgetting) {
    const after = look();
    const passed = now() - began;
    if (after.every((gpu) => newPids(before, gpu).length === 0)) listedMs ??= passed;
    if (after.every((gpu) => isBackTo(before, gpu))) memoryMs ??= passed;
    await sleep(POLL_MS);
  }
  const tellsMemory = before.some(({ memory }) => memory.usedBytes !== null);
  const at = (time: number | null) =>
    time === null ? `not within ${milliseconds(TIMEOUTS.forgetting)}` : `after ${milliseconds(time)}`;
  const facts = [
    ...(listing === null ? [] : [`the driver stops listing the process ${at(listedMs)}`]),
    ...(tellsMemory ? [`its memory is free ${at(memoryMs)}`] : []),
  ];
  if (facts.length === 0) skip('the driver tells neither processes nor memory');
  const text = `After kill -9, ${listWords(facts)}`;
  if (listedMs === null || memoryMs === null || Math.max(listedMs, memoryMs) > MAX_FORGETTING_MS) {
    fail(`${text}. A claim waits ${milliseconds(MAX_FORGETTING_MS)} for that.`, AFTER_CRASHES);
  }
  return `${text}.`;
}

/** Whether no more of a GPU's memory is in use than before. */
export function isBackTo(before: readonly GPU[], gpu: GPU): boolean {
  const old = sameIn(before, gpu)?.memory.usedBytes ?? null;
  const { usedBytes } = gpu.memory;
  return old === null || usedBytes === null || usedBytes <= old + SLACK_BYTES;
}
