import { type Configuration, loadConfiguration } from '../config/index.ts';
import { GPUOwnerError } from '../errors.ts';
import { formatBytes, listWords } from '../platform/index.ts';
import type { Report } from './finding.ts';

const BYTES = ['minFreeMemory', 'maxUsedMemory'];

/** The configuration files of machine and user. What they ban is compared with the GPUs in claimable.ts. */
export function examineConfiguration(report: Report): void {
  report.step('reading the configuration files');
  let configuration: Configuration;
  try {
    configuration = loadConfiguration();
  } catch (error) {
    if (!(error instanceof GPUOwnerError)) throw error;
    report.add('configuration-broken', `${error.message}.`, 'As long as it is so, every claim fails.');
    return;
  }
  report.tell({ configuration });
  const { files, thresholds } = configuration;
  report.add(
    'configuration',
    files.length === 0
      ? `No configuration file (${process.env.GPU_OWNER_MACHINE_CONFIG || '/etc/gpu-owner/config.yaml'}, ~/.config/gpu-owner/config.yaml).`
      : `${listWords(files)} ${files.length === 1 ? 'is' : 'are'} valid.`,
  );
  const conditions = Object.entries(thresholds).map(
    ([key, value]) =>
      `${key}: ${BYTES.includes(key) && typeof value === 'number' ? formatBytes(value) : value}`,
  );
  if (conditions.length > 0) {
    report.add(
      'thresholds',
      `Unless a call says otherwise, a GPU must satisfy ${listWords(conditions)} (from ${listWords(files)}).`,
      'If GPUs are called busy that should do, look here first.',
    );
  }
}
