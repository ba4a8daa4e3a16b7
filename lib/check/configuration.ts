import { type Configuration, loadConfiguration } from '../config/index.ts';
import { lastLook } from '../enforce/index.ts';
import { type GPU, selects } from '../gpus/index.ts';
import { findGid, findUid, formatSince, listWords } from '../platform/index.ts';
import type { Report } from './finding.ts';

/** The configuration files of machine and user. Their bans are compared with the GPUs by reportRules(). */
export function checkConfiguration(report: Report): void {
  report.step('reading the configuration files');
  const configuration = loadConfiguration();
  const { files } = configuration;
  report.add(
    'configuration',
    files.length === 0
      ? `No configuration file (${process.env.GPU_OWNER_MACHINE_CONFIG || '/etc/gpu-owner/config.yaml'}, ~/.config/gpu-owner/config.yaml).`
      : `${listWords(files)} ${files.length === 1 ? 'is' : 'are'} valid.`,
  );
  reportEnforcement(report, configuration);
  reportNames(report, configuration);
}

/** How old the last look of `gpu-owner enforce` may be: it looks every 30 s. */
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
  const configuration = loadConfiguration();
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
