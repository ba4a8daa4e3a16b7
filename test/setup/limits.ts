// While a test starts a program and waits for it synchronously, Vitest can't end the test: its timer never fires, and neither the test nor the
// whole run would ever end. So such a program has a limit of its own, unless the test gives it another.
import child, { type SpawnSyncOptions } from 'node:child_process';
import { syncBuiltinESMExports } from 'node:module';
import { afterAll } from 'vitest';

const LIMIT: SpawnSyncOptions = { timeout: 100_000, killSignal: 'SIGKILL' };

type Start = (
  file: string,
  args?: readonly string[] | SpawnSyncOptions,
  options?: SpawnSyncOptions,
) => unknown;

for (const name of ['spawnSync', 'execFileSync'] as const) {
  const start = child[name] as Start;
  const limited: Start = (file, args = [], options = {}) =>
    Array.isArray(args) ? start(file, args, { ...LIMIT, ...options }) : start(file, { ...LIMIT, ...args });
  Object.assign(child, { [name]: limited });
  afterAll(() => {
    Object.assign(child, { [name]: start });
  });
}
syncBuiltinESMExports();
