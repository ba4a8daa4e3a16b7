import { packageRoot } from '../native.ts';
import { prepend } from '../platform/index.ts';

/** Where Python finds what makes claims of safe-gpu, gpu_lock and GPU Scheduler claims of the job: see decision 49. */
const DIRECTORY = `${packageRoot}/python/job`;

/** PYTHONPATH of a job's command. An empty entry would mean the working directory, and strings can't carry all bytes. */
export function pythonPath(before = process.env.PYTHONPATH): { PYTHONPATH?: string } {
  if (before?.includes('\ufffd')) return {};
  return { PYTHONPATH: before ? prepend(DIRECTORY, before) : DIRECTORY };
}
