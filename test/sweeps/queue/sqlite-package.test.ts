import { expect, test } from 'vitest';
import { installationCommand } from '../../../lib/sweeps/queue/sqlite/database.ts';

test.each([
  ['/usr/local/lib/node_modules/gpu-owner/dist/experiments.cjs', 'npm install -g @photostructure/sqlite'],
  [
    '/home/a/.nvm/versions/node/v20.19.0/lib/node_modules/gpu-owner/dist/experiments.cjs',
    'npm install -g @photostructure/sqlite',
  ],
  [
    '/home/a/my project/node_modules/gpu-owner/dist/experiments.cjs',
    "npm install --prefix '/home/a/my project' @photostructure/sqlite",
  ],
  ['/srv/gpu-owner/dist/experiments.cjs', 'npm install --prefix /srv/gpu-owner @photostructure/sqlite'],
])('the SQLite package is installed where %s finds it', (file, command) => {
  expect(installationCommand(file)).toBe(command);
});
