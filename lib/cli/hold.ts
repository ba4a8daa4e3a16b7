import { fstatSync } from 'node:fs';
import { checkOptions, type WaitOptions } from '../claims/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { becomeHolder, claimForJob } from '../jobs/index.ts';
import { shellWords } from '../platform/index.ts';
import {
  CRITERIA_GROUP,
  claimingOptions,
  claimOptions,
  countOption,
  LOCKS,
  NAMES,
  waitOptions,
} from './claim-options.ts';
import type { Command } from './command.ts';
import { type Parsed, refuseWords } from './options.ts';
import { waitLimits } from './wait-progress.ts';

async function hold(parsed: Parsed): Promise<void> {
  const { values, args } = parsed;
  refuseWords(parsed);
  const settings = checkOptions(claimOptions(values), [], NAMES);
  settings.request.command = values.as ? String(values.as) : shellWords(['gpu-owner', 'hold', ...args]);
  const limits = waitLimits(values, false);
  const claim = await whileInputIsOpen(limits, (wait) => claimForJob(settings, wait)).finally(() =>
    limits?.end(),
  );
  const devices = claim.gpus.map(({ index, instance, uuid, name }) => ({
    index,
    ...(instance === null ? {} : { instance }),
    uuid,
    name,
  }));
  becomeHolder(claim, JSON.stringify({ devices, visibleDevices: claim.variables.CUDA_VISIBLE_DEVICES }));
}

/**
 * Ends a wait when standard input is closed: then the program that started `hold` has ended, and its request must leave the wait queue.
 * While GPUs are held, the keeper watches the input. A terminal, a file or /dev/null says nothing.
 * @throws ERR_ABORTED then; nothing is held
 */
async function whileInputIsOpen<Result>(
  wait: WaitOptions | null,
  claim: (wait: WaitOptions | null) => Promise<Result>,
): Promise<Result> {
  if (wait === null) return claim(null);
  const controller = new AbortController();
  const { signal } = controller;
  let isWatched = false;
  // Only once there is something to wait for: a claim that succeeds at once needn't pay for Node's streams.
  const watch = () => {
    if (isWatched) return;
    isWatched = true;
    const input = fstatSync(0);
    if (!input.isFIFO() && !input.isSocket()) return;
    const abort = () => controller.abort();
    process.stdin.on('end', abort).on('error', abort).on('close', abort).resume();
  };
  const onWaiting: WaitOptions['onWaiting'] = (gpus) => {
    watch();
    wait.onWaiting?.(gpus);
  };
  try {
    return await claim({ ...wait, signal, onWaiting });
  } catch (error) {
    if (!signal.aborted) throw error;
    throw new GPUOwnerError(
      'ERR_ABORTED',
      'standard input was closed while waiting for GPUs; nothing is held.',
    );
  }
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Claims GPUs, prints one line of JSON, { "devices": [{ "index", "uuid", "name" }], "visibleDevices": "…" }, and holds the GPUs until standard input is closed or a signal comes. Programs in any language can claim GPUs with it: start it with a pipe as standard input, read the line, set CUDA_VISIBLE_DEVICES, and keep the pipe open.`,
  groups: [
    {
      options: {
        ...countOption('claim'),
        ...waitOptions(false),
        ...claimingOptions(
          'keep the GPUs visibly taken: auto (default), until a process shows on them, 60 s at most; keep; none',
        ),
        as: { value: 'TEXT', help: "show others this text as the holder's command" },
        ...LOCKS,
      },
    },
    CRITERIA_GROUP,
  ],
  run: hold,
};
