import { readdirSync } from 'node:fs';
import { driverLibraries, normalizeCriteria } from '../config/index.ts';
import {
  cudaVersion,
  describeListedProcess,
  type GPU,
  isWSL,
  judge,
  label,
  snapshotSync,
} from '../gpus/index.ts';
import { native } from '../native.ts';
import { formatBytes, listWords, now, sleep, TIMEOUTS } from '../platform/index.ts';
import { getGPUsSync } from '../status/index.ts';
import { fail, REPORT_IT, skip } from './check.ts';
import { type Context, cudaList, digitsOf, milliseconds } from './context.ts';
import { checkCudaProgram, cudaDevices } from './cuda-program.ts';
import { checkFields, timeOfNvidiaSmi } from './nvidia-smi.ts';
import { checkPyTorch } from './pytorch.ts';
import { runProgram, Subprocess } from './subprocess.ts';

/** Makes the checks that are made under one claim. This process is its command, and the GPUs are idle at first. */
export async function checkInside(context: Context): Promise<void> {
  const { runCheck, gpus } = context;
  await runCheck('snapshot', () => checkSnapshot(context));
  await runCheck('fields', () => checkFields(gpus));
  await runCheck('idle-memory', () => checkIdleMemory(gpus));
  await runCheck('energy', () => checkEnergy(gpus));
  await runCheck('side-by-side', () => checkSideBySide(gpus));
  await runCheck('cuda-library', checkCudaLibrary);
  await runCheck('cuda-devices', () => checkCudaDevices(gpus));
  await checkCudaProgram(context);
  await runCheck('pytorch-devices', () => checkPyTorch(gpus));
  await runCheck('nested-claims', () => checkNestedClaims(context));
  // Last: if it fails, this process has no NVML any more.
  await runCheck('other-nvml-user', () => checkOtherUser(gpus));
}

/** Longer, and every claim is slow; a GPU that doesn't answer for 0.8 s counts as hung. In ms. */
const MAX_SNAPSHOT_MS = 500;
const SNAPSHOT_TIME_MS = 500;

async function checkSnapshot({ startedInMs }: Context): Promise<string> {
  const times: number[] = [];
  let all: GPU[] = [];
  for (const end = now() + SNAPSHOT_TIME_MS; times.length === 0 || (now() < end && times.length < 500); ) {
    const began = now();
    all = snapshotSync();
    times.push(now() - began);
  }
  const median = times.toSorted((a, b) => a - b)[times.length >> 1] ?? 0;
  const count = all.filter(({ instance }) => instance === null).length;
  const text = `A snapshot of ${count === 1 ? 'the GPU' : `all ${count} GPUs`} takes ${milliseconds(median)}`;
  if (median > MAX_SNAPSHOT_MS) {
    fail(
      `${text}; every claim takes at least as long, and a GPU that is silent for 0.8 s counts as hung.`,
      'Turn on persistence mode, as root: `nvidia-smi -pm 1`. If it is on, see `dmesg | grep -i nvrm`.',
    );
  }
  const other = await timeOfNvidiaSmi();
  return `${text}, the first one ${milliseconds(startedInMs)}${other === null ? '' : `; nvidia-smi takes ${milliseconds(other)}`}.`;
}

const MiB = 2 ** 20;
/** A driver needs less than this on an idle GPU: more belongs to a program. */
const MAX_IDLE_BYTES = 1024 * MiB;

/** Idle GPUs stay below the 100 MiB that count as use: this one's, and others that aren't claimed. */
function checkIdleMemory(claimed: readonly GPU[]): string {
  const mine = snapshotSync().filter(({ uuid }) => claimed.some((gpu) => gpu.uuid === uuid));
  if (mine.every(({ memory }) => memory.usedBytes === null))
    skip('the driver does not tell how much memory is in use');
  if (mine.some(({ processes }) => processes?.some(({ type }) => type === 'compute')))
    skip('the job in which this runs has processes on the GPUs');
  const unclaimed = getGPUsSync().filter(
    ({ state, health, processes, memory }) =>
      state === 'busy' &&
      health === 'ok' &&
      processes?.length === 0 &&
      (memory.usedBytes ?? 0) < MAX_IDLE_BYTES,
  );
  const busy = [...mine.filter(isCalledBusy), ...unclaimed];
  if (busy.length > 0) {
    const list = busy.map((gpu) => `GPU ${label(gpu)}: ${formatBytes(gpu.memory.usedBytes)}`);
    fail(
      `Memory is in use where no process is listed (${listWords(list)}), so claims without options call it busy.`,
      'If no container uses it, this is what the driver needs when idle: claim with `--max-used-memory`, or set `maxUsedMemory` in /etc/gpu-owner/config.yaml.',
    );
  }
  const list = mine.map((gpu) => `${formatBytes(gpu.memory.usedBytes)} on GPU ${label(gpu)}`);
  return `Idle memory in use: ${listWords(list)}. More than 100 MiB would count as use.`;
}

function isCalledBusy(gpu: GPU): boolean {
  const context = {
    lease: null,
    visible: null,
    criteria: normalizeCriteria({}),
    describe: describeListedProcess,
    wsl: isWSL(),
  };
  return judge(gpu, context).state === 'busy';
}

const POWER_POLL_MS = 100;

/** The energy counter says what the power readings say. */
async function checkEnergy(gpus: readonly GPU[]): Promise<string> {
  const indices = gpus.filter(({ instance }) => instance === null).map(({ index }) => index);
  if (indices.length === 0) skip('a MIG instance has no sensor of its own');
  // A busy machine may suspend this process between a look at the counters and one at the clock.
  const look = () => {
    const before = now();
    const counters = indices.map((index) => native().driverEnergy(uuidOf(index)));
    return { before, counters, after: now() };
  };
  const uuidOf = (index: number) => gpus.find((gpu) => gpu.index === index)?.uuid ?? '';
  look(); // opens the library
  const first = look();
  const readings = indices.map((): number[] => []);
  while (now() - first.after < TIMEOUTS.energy) {
    const all = snapshotSync(indices);
    indices.forEach((index, i) => {
      const watts = all.find((gpu) => gpu.index === index && gpu.instance === null)?.powerWatts;
      if (typeof watts === 'number') readings[i]?.push(watts);
    });
    await sleep(POWER_POLL_MS);
  }
  const last = look();
  const [shortest, longest] = [last.before - first.after, last.after - first.before];
  const texts = indices.map((index, i) => {
    const read = readings[i] ?? [];
    // Millijoules per millisecond are watts.
    const energy = (last.counters[i] ?? Number.NaN) - (first.counters[i] ?? Number.NaN);
    return { index, read, counted: energy / shortest, least: energy / longest };
  });
  if (texts.every(({ read, counted }) => read.length === 0 && Number.isNaN(counted)))
    skip('the driver tells neither power nor energy');
  const wrong = texts.filter(
    ({ read, counted, least }) =>
      read.length > 0 &&
      !Number.isNaN(counted) &&
      (counted < Math.min(...read) * 0.7 - 5 || least > Math.max(...read) * 1.3 + 5),
  );
  const tell = ({ index, read, counted }: (typeof texts)[number]) =>
    `GPU ${index}: ${read.length === 0 ? 'no power readings' : `${mean(read).toFixed(1)} W read`}, ` +
    `${Number.isNaN(counted) ? 'no energy counter' : `${counted.toFixed(1)} W counted`}`;
  if (wrong.length > 0) {
    fail(
      `The energy counter disagrees with the power: ${wrong.map(tell).join('; ')}.`,
      `Do not rely on energy or idle times of this GPU. ${REPORT_IT}`,
    );
  }
  return `Idle power by readings, and by the energy counter: ${texts.map(tell).join('; ')}.`;
}

function mean(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}

/** Above this, a snapshot starts a thread for each GPU: it relies on the driver to serve them side by side. In us. */
const SLOW_SNAPSHOT_US = 2_000;
const SIDE_BY_SIDE_TIME_MS = 300;

function checkSideBySide(gpus: readonly GPU[]): string {
  const uuids = gpus.filter(({ instance }) => instance === null).map(({ uuid }) => uuid);
  if (uuids.length < 2) skip('needs two whole GPUs (-n 2)');
  const { code, alone, together } = native().driverSnapshotTimes(uuids, SIDE_BY_SIDE_TIME_MS);
  if (code !== 0)
    fail(`The driver refuses parallel threads that query GPUs: ${native().driverCodeText(code)}.`);
  const longest = Math.max(...alone);
  const others = alone.reduce((sum, time) => sum + time, 0) - longest;
  // 0: as fast as alone; 1: each waits for all others.
  const waiting = (together - longest) / others;
  const text = `A snapshot of a GPU takes ${milliseconds(longest / 1_000)} alone, ${milliseconds(together / 1_000)} while threads query ${uuids.length} GPUs`;
  if (waiting > 0.6 && longest > SLOW_SNAPSHOT_US) {
    fail(
      `${text}: the driver serves one after the other, so a snapshot takes the sum of all GPUs.`,
      `Turn on persistence mode, as root: \`nvidia-smi -pm 1\`. ${REPORT_IT}`,
    );
  }
  return `${text}: ${waiting > 0.6 ? 'one after the other, which is harmless at this speed' : 'side by side'}.`;
}

const ROUNDS = 30;

/** Another part of the process opens, uses and closes NVML, while this one uses it. */
function checkOtherUser([gpu]: Context['gpus']): string {
  const open = () => readdirSync('/proc/self/fd').length;
  const { other, ours, sameMemory } = native().driverUseBeside(driverLibraries().nvml, gpu.uuid, 1);
  const before = open();
  const again = native().driverUseBeside(driverLibraries().nvml, gpu.uuid, ROUNDS);
  const code = [ours, again.ours, other, again.other].find((each) => each !== 0) ?? 0;
  const health = snapshotSync().find(({ uuid }) => uuid === gpu.uuid)?.health;
  const remedy = `Other libraries that use NVML in the process of a \`GPUOwner\` may fail: keep them in another process. ${REPORT_IT}`;
  if (code !== 0)
    fail(`Two users of NVML in one process disturb each other: ${native().driverCodeText(code)}.`, remedy);
  if (health !== 'ok' && health !== 'unhealthy')
    fail(`After another user of NVML has ended, GPU ${label(gpu)} can't be queried: ${health}.`, remedy);
  if (!sameMemory || !again.sameMemory)
    fail('Two users of NVML in one process read different memory sizes.', remedy);
  const more = open() - before;
  if (more >= ROUNDS)
    fail(`Each nvmlInit and nvmlShutdown leaves ${Math.round(more / ROUNDS)} files open.`, remedy);
  return `Another part of the process can open, use and close NVML meanwhile (${ROUNDS} times).`;
}

function checkCudaLibrary(): string {
  const { path, missing, version, attempts } = native().cudaLibrary(driverLibraries().cuda);
  if (path === '') {
    const places = attempts.map((attempt) => `${attempt.path} (${attempt.error})`);
    fail(
      `No CUDA: its library, a part of the driver, could not be loaded: ${listWords(places)}. Checks that start CUDA are skipped.`,
      'Run `gpu-owner doctor`: it tells how to get it. In a container, start it with `-e NVIDIA_DRIVER_CAPABILITIES=compute,utility`.',
    );
  }
  if (missing !== '') {
    fail(
      `No CUDA: ${path} lacks ${missing}. Checks that start CUDA are skipped.`,
      'It is a stub, or not of the driver: remove directories named `stubs` from LD_LIBRARY_PATH, or set GPU_OWNER_CUDA_LIBRARY.',
    );
  }
  const newest = cudaVersion(version);
  return `The driver's CUDA library can be loaded${newest === null ? '' : `, for CUDA ${newest}`}.`;
}

/** A command sees exactly the claimed GPUs, in their order. */
async function checkCudaDevices(gpus: readonly GPU[]): Promise<string> {
  const seen = await cudaDevices(cudaList());
  const wanted = gpus.map(({ uuid }) => digitsOf(uuid));
  if (seen.join() !== wanted.join()) {
    const others = seen.filter((digits) => !wanted.includes(digits)).length;
    const missing = gpus.filter(({ uuid }) => !seen.includes(digitsOf(uuid))).map(label);
    fail(
      `CUDA shows ${seen.length} GPUs to a command for which ${gpus.length} ${gpus.length === 1 ? 'was' : 'were'} claimed` +
        `${others > 0 ? `, ${others} of them not claimed` : ''}` +
        `${missing.length > 0 ? `; GPU ${listWords(missing)} is missing` : ''}` +
        `${others === 0 && missing.length === 0 ? ', in another order' : ''}.`,
      'Check that nothing changes CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER in between (shell profiles, wrappers).',
    );
  }
  return `A command sees GPU ${listWords(gpus.map(label))} and no other.`;
}

/** A claim inside of a job gets GPUs of the job, and no other claim gets these meanwhile. */
async function checkNestedClaims({ command, claim, gpus }: Context): Promise<string> {
  const inside = ['--no-wait', '--placeholder=none', ...claim];
  const wanted = gpus.map(({ uuid }) => digitsOf(uuid));
  // By numbers, too: then CUDA's order counts.
  for (const form of ['uuid', 'index']) {
    const words = [
      ...command,
      'run',
      `--gpus=${gpus.length}`,
      `--visible-devices=${form}`,
      ...inside,
      '--',
      ...cudaList(),
    ];
    const seen = await cudaDevices(words);
    if (seen.toSorted().join() === wanted.toSorted().join()) continue;
    fail(
      `A claim inside of the job, which names GPUs by ${form}, shows ${seen.filter((each) => wanted.includes(each)).length} of its ${gpus.length} GPUs, and ${seen.filter((each) => !wanted.includes(each)).length} others.`,
    );
  }
  const holder = new Subprocess([...command, 'hold', `--gpus=${gpus.length}`, ...inside]);
  const answer = await holder.line(30_000);
  const second = await runProgram([...command, 'run', '--gpus=1', ...inside, '--', 'true'], 30_000);
  await holder.stop();
  if (answer === null) fail('A claim inside of the job is refused, though the job has the GPUs.');
  if (second.code !== 75) {
    fail(
      `A second claim inside of the job is not refused (exit code ${second.code}), though the first one has all GPUs.`,
      'Locks may not work here: run `gpu-owner doctor`.',
    );
  }
  return 'A claim inside of the job gets its GPUs, named by UUID or number, and a second one is refused.';
}
