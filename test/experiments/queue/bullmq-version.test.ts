// Queues on Redis run BullMQ's own scripts, so they work with one version of it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { BULLMQ_VERSION } from '../../../lib/experiments/queue/bullmq/bullmq-scripts.ts';
import { openQueue } from '../../../lib/experiments/queue/index.ts';
import { root } from '../../support/machine.ts';

const require = createRequire(import.meta.url);
const manifest = require('bullmq/package.json') as { version: string };
const { version } = manifest;
afterEach(() => {
  manifest.version = version;
});

test('package.json and the lock file pin the version of BullMQ that the scripts are made for', () => {
  const json = (name: string) => JSON.parse(readFileSync(join(root, name), 'utf8'));
  const { packages } = json('package-lock.json');
  expect([
    json('package.json').peerDependencies.bullmq,
    packages[''].peerDependencies.bullmq,
    packages[''].devDependencies.bullmq,
    packages['node_modules/bullmq'].version,
    version,
  ]).toEqual(Array(5).fill(BULLMQ_VERSION));
});

test('another version of BullMQ is refused before Redis is asked', async () => {
  manifest.version = '6.99.0';
  await expect(openQueue('redis://127.0.0.1:1', root)).rejects.toMatchObject({
    code: 'ERR_QUEUE',
    message:
      `BullMQ 6.99.0 is installed, but queues on Redis need exactly ${BULLMQ_VERSION}, whose scripts they run. ` +
      `Install that version beside gpu-owner: npm install bullmq@${BULLMQ_VERSION}`,
  });
});
