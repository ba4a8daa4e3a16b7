import { dirname } from 'node:path';
import { errorMessage, GPUOwnerError } from '../errors.ts';
import { nativeFile, packageRoot } from '../native.ts';
import { ownPackage } from '../platform/index.ts';

/** The text of `--version`: the version alone in the first line, then what to say in a bug report. */
export function versionText(): string {
  const { version, distribution = 'sources' } = ownPackage();
  return [
    version,
    `package: ${packageRoot} (${distribution})`,
    `Node.js: ${process.execPath} (${process.versions.node})`,
    `native:  ${nativeDirectory()}`,
  ].join('\n');
}

function nativeDirectory(): string {
  try {
    return dirname(nativeFile('addon'));
  } catch (error) {
    return errorMessage(error);
  }
}

/**
 * Environments that a tool makes for one command and deletes later: uv's cache (uvx), and pipx's (pipx run), whose place is
 * configured, but whose name is the beginning of a sum.
 * https://docs.astral.sh/uv/concepts/tools/#execution-vs-installation
 * https://github.com/pypa/pipx/blob/main/src/pipx/commands/run.py
 */
const THROW_AWAY = /\/(?:archive-v\d+\/[^/]+|[\da-f]{15})\/lib\/gpu-owner$/;

/**
 * For commands that claim GPUs.
 * @throws ERR_INSTALLATION where this program may be deleted at any time
 */
export function refuseThrowAway(): void {
  if (!THROW_AWAY.test(packageRoot)) return;
  throw new GPUOwnerError(
    'ERR_INSTALLATION',
    `this gpu-owner is in a throw-away environment, ${dirname(dirname(packageRoot))}: its python would not be yours, and ` +
      'clearing the cache would delete it under a running job. Install it: uv tool install gpu-owner, or pipx install gpu-owner',
  );
}
