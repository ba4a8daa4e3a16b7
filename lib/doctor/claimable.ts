import type { Configuration } from '../config/index.ts';
import { type GPU, matchesName, selects } from '../gpus/index.ts';
import { listWords, showValue } from '../platform/index.ts';
import type { Facts, Report } from './finding.ts';
import { list } from './gpus.ts';

/** What configuration files and CUDA_VISIBLE_DEVICES leave of the GPUs that there are. */
export function reportClaimable(report: Report, facts: Facts): void {
  const { gpus, configuration, visible, visibleNote } = facts;
  if (gpus === undefined || gpus.length === 0) return;
  const banned = configuration === undefined ? [] : reportBans(report, gpus, configuration);
  const hidden = visible ? gpus.filter(({ uuid }) => !visible.includes(uuid)) : [];
  if (visible && visible.length > 0) {
    const allowed = gpus.filter((gpu) => !hidden.includes(gpu));
    report.add(
      'visible-devices',
      `CUDA_VISIBLE_DEVICES is ${variable()}, so only ${list(allowed)} can be claimed from here.`,
      'If no batch system has set it: `unset CUDA_VISIBLE_DEVICES`.',
    );
  }
  if (visible && (visible.length === 0 || visibleNote)) {
    report.add(
      'visible-devices-odd',
      visibleNote
        ? `${visibleNote}.`
        : `CUDA_VISIBLE_DEVICES is ${variable()}, which names no GPU that could be claimed.`,
      'Put the variable right where it is set, or, if no batch system has set it: `unset CUDA_VISIBLE_DEVICES`.',
    );
  }
  const left = gpus.filter(
    (gpu) =>
      gpu.health === 'ok' &&
      gpu.computeMode !== 'prohibited' &&
      !banned.includes(gpu) &&
      !hidden.includes(gpu),
  );
  if (left.length > 0) return;
  report.add(
    'nothing-claimable',
    'No GPU is left that could ever be claimed from here: all have failed, or are banned or hidden.',
    'See above for each.',
  );
}

function variable(): string {
  return showValue(process.env.CUDA_VISIBLE_DEVICES);
}

/** Returns the GPUs that may not be claimed. */
function reportBans(report: Report, gpus: readonly GPU[], configuration: Configuration): GPU[] {
  const bySource = new Map<string, Set<GPU>>();
  const ban = (source: string | null, some: readonly GPU[]) => {
    const set = bySource.get(source ?? '') ?? new Set();
    for (const gpu of some) set.add(gpu);
    if (some.length > 0) bySource.set(source ?? '', set);
  };
  for (const { selectors, source } of configuration.exclude) {
    ban(
      source,
      gpus.filter((gpu) => selectors.some((selector) => selects(selector, gpu))),
    );
  }
  for (const { pattern, source } of configuration.excludeNames) {
    ban(
      source,
      gpus.filter(({ name }) => matchesName(pattern, name)),
    );
  }
  for (const { selectors, source } of configuration.devices) {
    ban(
      source,
      gpus.filter((gpu) => !selectors.some((selector) => selects(selector, gpu))),
    );
  }
  for (const [source, some] of bySource) {
    report.add(
      'gpus-banned',
      `${list([...some])} may not be claimed: ${source} says so.`,
      `If that isn't meant, change \`exclude\`, \`excludeNames\` or \`devices\` there.`,
    );
  }
  // A GPU that can't say who it is may be the one that is meant.
  const allKnown = gpus.every(({ uuid }) => uuid !== '');
  for (const { selectors, source } of [...configuration.exclude, ...configuration.devices]) {
    const without = selectors.filter((selector) => !gpus.some((gpu) => selects(selector, gpu)));
    if (without.length === 0 || !allKnown) continue;
    report.add(
      'rule-without-gpu',
      `${listWords(without.map(({ text }) => `'${text}'`))} in ${source} ${without.length === 1 ? 'names' : 'name'} no GPU of this machine: a ban may be without effect, as indices change when cards do.`,
      '`gpu-owner status --json` has the UUIDs, which stay.',
    );
  }
  return [...new Set([...bySource.values()].flatMap((some) => [...some]))];
}
