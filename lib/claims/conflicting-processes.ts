import { GPUOwnerError } from '../errors.ts';
import { describeListedProcess, type GPU, isMPSServer, label } from '../gpus/index.ts';

/**
 * Compute processes that came to claimed GPUs between the last look and the placeholder, from people who don't claim.
 *
 * @param expectedOn PIDs of the claim's own processes on a GPU, if there are any. In a container the driver may call them by other numbers: then one
 *   new process per GPU that isn't known here is taken for ours.
 */
export function findConflictingProcesses(
  before: readonly GPU[],
  after: readonly GPU[],
  expectedOn: (gpu: GPU) => readonly number[],
): GPUOwnerError | null {
  const claimed = (gpu: GPU) => before.some(({ uuid }) => uuid === gpu.uuid);
  const reasons = after.filter(claimed).flatMap((gpu) => {
    const earlier = before.find(({ uuid }) => uuid === gpu.uuid);
    const strangers = unexpectedProcesses(gpu, earlier, expectedOn(gpu));
    if (strangers.length === 0) return [];
    const { name, user, alive } = describeListedProcess(strangers[0] as number);
    const who = name ?? (alive === 'gone' ? "a process that isn't visible here" : 'a process');
    const reason = `${who} (pid ${strangers[0]}${user ? `, ${user}` : ''}) started on it while it was being claimed`;
    return [{ index: gpu.index, instance: gpu.instance, uuid: gpu.uuid, reason }];
  });
  if (reasons.length === 0) return null;
  const list = reasons.map((each) => `  GPU ${label(each)}: ${each.reason}`).join('\n');
  return new GPUOwnerError(
    'ERR_GPU_UNAVAILABLE',
    `programs without a claim started on these GPUs during the claim:\n${list}`,
    {
      gpus: reasons,
    },
  );
}

/**
 * Compute processes on a GPU that neither were there before nor are expected.
 * @param expected PIDs of the claim's own processes on it, as for {@link findConflictingProcesses}
 */
export function unexpectedProcesses(
  gpu: GPU,
  before: GPU | undefined,
  expected: readonly number[],
): number[] {
  const known = new Set([...expected, ...computePids(before)]);
  const now = computePids(gpu);
  // Our own placeholder may have made the MPS control daemon start a server.
  const strangers = now.filter((pid) => !known.has(pid) && !isMPSServer(describeListedProcess(pid)));
  const renumbered = expected.length > 0 && !now.some((pid) => expected.includes(pid));
  return renumbered ? strangers.slice(1) : strangers;
}

function computePids(gpu: GPU | undefined): number[] {
  return (gpu?.processes ?? []).filter(({ type }) => type === 'compute').map(({ pid }) => pid);
}
