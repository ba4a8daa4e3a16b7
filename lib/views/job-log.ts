// The output of a job of this user, here or on another machine, for displays: its last part, and what follows.
import type { Host } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { showOutput } from '../fleet/index.ts';
import { followOutput, JobStore, jobAt } from '../jobs/index.ts';

/** How much of the output is read. */
export const TAIL_BYTES = 256 * 1024;

/**
 * Reads the last part of a job's output, and what follows until the job has ended, or the signal comes.
 * @param host null: this machine
 * @param onBytes called with each piece, and now and then with none; output of this machine is read further once it has ended
 * @param onLost called with each new reason why the host doesn't answer any more
 * @param follow whether to go on after what there is now
 * @returns why it can't be read; null: that was all
 */
export async function followTail(
  host: Host | null,
  id: number,
  onBytes: (bytes: Uint8Array) => void | Promise<void>,
  onLost: (reason: string) => void,
  signal: AbortSignal,
  follow: boolean,
): Promise<{ code: string; message: string } | null> {
  if (host !== null) {
    const wanted = { from: -TAIL_BYTES, lines: null, follow, isKnown: false };
    return showOutput(host, String(id), wanted, (_, bytes) => void onBytes(bytes), onLost, signal);
  }
  try {
    const store = JobStore.open();
    const wanted = { at: -TAIL_BYTES, lines: null, follow };
    for await (const { bytes } of followOutput(id, () => jobAt(store, id), wanted, signal))
      await onBytes(bytes);
    return null;
  } catch (error) {
    if (error instanceof GPUOwnerError) return error;
    throw error;
  }
}
