import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';

/**
 * Returns what to add to node-gyp's environment so that it takes Node.js's headers from where they came with Node.js, and
 * doesn't download them. Nothing where they aren't there.
 */
export function headersEnvironment() {
  const prefix = dirname(dirname(process.execPath));
  return existsSync(join(prefix, 'include/node/node_api.h')) ? { npm_config_nodedir: prefix } : {};
}
