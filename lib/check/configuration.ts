import { type Configuration, loadConfiguration } from '../config/index.ts';
import { lastLook } from '../enforce/index.ts';
import { formatSince, listWords } from '../platform/index.ts';
import type { Report } from './finding.ts';

/** The configuration files of machine and user. */
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
