// Which files a change has. A test that takes long and depends on few files runs when one of those changed, and in `npm run test:soak`.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

const root = join(import.meta.dirname, '../..');
/** The base of a change, where GPU_OWNER_TEST_BASE names no commit: the first of these. */
const BASES = ['@{upstream}', 'origin/HEAD', 'origin/main', 'main'];

/**
 * Tells why a test needn't run: none of its files changed since the base. null: it must run, because one changed, because everything is asked
 * for, or because there is no base.
 * @param paths files, directories and patterns of git's
 */
export function whyUnchanged(paths: string[], clone = root): string | null {
  const { GPU_OWNER_SOAK, GPU_OWNER_TEST_BASE } = process.env;
  if (GPU_OWNER_SOAK) return null;
  const git = (...args: string[]) => {
    const { status, stdout } = spawnSync('git', args, { cwd: clone, encoding: 'utf8' });
    return status === 0 ? stdout.trim() : null;
  };
  for (const base of GPU_OWNER_TEST_BASE ? [GPU_OWNER_TEST_BASE] : BASES) {
    const commit = git('merge-base', 'HEAD', base);
    if (commit === null) continue;
    const changed = git('diff', '--name-only', commit, '--', ...paths);
    const added = git('ls-files', '--others', '--exclude-standard', '--', ...paths);
    return changed === '' && added === '' ? `unchanged since ${base}` : null;
  }
  return null;
}
