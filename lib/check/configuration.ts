import { checkConventions } from '../claims/index.ts';
import { type Configuration, loadConfiguration } from '../config/index.ts';
import { conventionsInUse } from '../conventions/index.ts';
import { lastLook } from '../enforce/index.ts';
import { GPUOwnerError, ifPossible } from '../errors.ts';
import { type GPU, selects } from '../gpus/index.ts';
import {
  findGid,
  findUid,
  formatBytes,
  formatSince,
  isDirectory,
  listWords,
  statusOf,
} from '../platform/index.ts';
import type { Report } from './finding.ts';

const BYTES = ['minFreeMemory', 'maxUsedMemory'];

/** The configuration files of machine and user. Their bans are compared with the GPUs by reportRules(). */
export function checkConfiguration(report: Report): void {
  report.step('reading the configuration files');
  let configuration: Configuration;
  try {
    configuration = loadConfiguration();
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    report.add(
      'configuration-broken',
      `${error.message}.`,
      'Correct that line. Until then, every claim fails.',
    );
    return;
  }
  const { files, thresholds } = configuration;
  report.add(
    'configuration',
    files.length === 0
      ? `No configuration file (${process.env.GPU_OWNER_MACHINE_CONFIG || '/etc/gpu-owner/config.yaml'}, ~/.config/gpu-owner/config.yaml).`
      : `${listWords(files)} ${files.length === 1 ? 'is' : 'are'} valid.`,
  );
  reportEnforcement(report, configuration);
  reportNames(report, configuration);
  const conditions = Object.entries(thresholds).map(
    ([key, value]) =>
      `${key}: ${BYTES.includes(key) && typeof value === 'number' ? formatBytes(value) : value}`,
  );
  if (conditions.length > 0) {
    report.add(
      'thresholds',
      `Unless a call says otherwise, a GPU must satisfy ${listWords(conditions)} (from ${listWords(files)}).`,
      'If a GPU is called busy unexpectedly, check these conditions first.',
    );
  }
}

/** So long a look of `gpu-owner enforce` may be past: it looks every 30 s. */
const MAX_LOOK_AGE_MS = 120_000;

function reportEnforcement(report: Report, { enforce }: Configuration): void {
  const look = lastLook();
  if (enforce === undefined || (look !== null && Date.now() - look < MAX_LOOK_AGE_MS)) return;
  const since = look === null ? 'since the machine was started' : `since ${formatSince(look)}`;
  report.add(
    'enforce-not-running',
    `The configuration has \`enforce\`, and \`gpu-owner enforce\` hasn't looked ${since}: programs on GPUs of others aren't ended.`,
    'As root: `systemctl enable --now gpu-owner-enforce`. `journalctl -u gpu-owner-enforce` says why it ends.',
  );
}

/** Rules for users and groups that this machine doesn't know. */
function reportNames(report: Report, { limits, urgent, bookings, idle, enforce }: Configuration): void {
  const rules = [urgent, bookings, idle, enforce?.except];
  const users = [...(limits?.users.keys() ?? []), ...rules.flatMap((rule) => rule?.users ?? [])];
  const groups = [
    ...(limits?.groups.keys() ?? []),
    ...[urgent, bookings, enforce?.except].flatMap((rule) => rule?.groups ?? []),
  ];
  const unknown = [
    ...new Set(users.filter((user) => findUid(user) === null).map((user) => `user ${user}`)),
    ...new Set(groups.filter((group) => findGid(group) === null).map((group) => `group ${group}`)),
  ];
  if (unknown.length === 0) return;
  const left = enforce === undefined ? '' : ', and `enforce` may leave users of a directory service alone';
  report.add(
    'rule-without-user',
    `The configuration has a rule for the ${listWords(unknown)}, and this machine has none of that name: the rule does nothing${left}.`,
    'Correct the name, or remove it. `getent passwd NAME` or `getent group NAME` must find it.',
  );
}

/** Rules for GPUs that this machine doesn't have. */
export function reportRules(report: Report, gpus: readonly GPU[]): void {
  const configuration = ifPossible(loadConfiguration, null);
  if (configuration === null) return; // told by checkConfiguration()
  // A GPU that can't say who it is may be the one that is meant.
  const allKnown = gpus.every(({ uuid }) => uuid !== '');
  for (const { selectors, source } of [...configuration.exclude, ...configuration.devices]) {
    const without = selectors.filter((selector) => !gpus.some((gpu) => selects(selector, gpu)));
    if (without.length === 0 || !allKnown) continue;
    report.add(
      'rule-without-gpu',
      `${listWords(without.map(({ text }) => `'${text}'`))} in ${source} ${without.length === 1 ? 'names' : 'name'} no GPU of this machine: a ban may have no effect, because indices change when cards change.`,
      'Name GPUs by their UUIDs, which stay the same: `gpu-owner status --json` shows them.',
    );
  }
}

/** Other tools that lock GPUs here, by the directories in which they have their locks. */
export function checkOtherTools(report: Report): void {
  report.step('looking for lock files of other tools');
  const found = conventionsInUse(choice()).filter(
    ({ paths, ignored }) => ignored !== null || paths.some(isDirectory),
  );
  const shared: { name: string; existing: string[] }[] = [];
  for (const { name, active, why, paths, ignored } of found) {
    const existing = paths.filter(isDirectory);
    if (active && ignored === null && existing.length > 0 && existing.every(isOpenToAll)) {
      shared.push({ name, existing });
      continue;
    }
    if (existing.length === 0) {
      report.add('convention-in-use', `${name}: its locks don't count: ${ignored}.`);
      continue;
    }
    const honoured = active ? 'its locks are respected' : `its locks don't count: ${why}`;
    const links = ignored === null ? '' : `; ${ignored}`;
    report.add('convention-in-use', `${name}: ${listWords(existing)}; ${honoured}${links}.`);
  }
  if (found.length === 0) report.add('conventions', 'No lock files of other tools.');
  if (shared.length > 0) {
    const [names, places] = [shared.map(({ name }) => name), shared.flatMap(({ existing }) => existing)];
    report.add(
      'conventions',
      `Locks of ${listWords(names)} are respected. Claims make their directories: ${listWords(places)}.`,
    );
  }
}

/** As directories of the whole machine are: every claim makes them, so they tell nothing of other tools. */
function isOpenToAll(path: string): boolean {
  return (statusOf(path)?.mode ?? 0) % 0o1000 === 0o777;
}

/** A mistake in what says so is another subject's finding. */
function choice(): 'auto' | readonly string[] {
  return ifPossible(() => checkConventions(undefined, loadConfiguration(), 'conventions'), 'auto');
}
