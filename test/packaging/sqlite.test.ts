import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from '../support/machine.ts';

const prebuilds = join(root, 'node_modules/@photostructure/sqlite/prebuilds');
const hasReadelf = spawnSync('readelf', ['--version']).status === 0;

test.skipIf(!hasReadelf).each(['linux-x64', 'linux-arm64'])(
  'the package of SQLite brings binaries for glibc 2.29 and for musl (%s; needs readelf)',
  (platform) => {
    const files = readdirSync(join(prebuilds, platform)).filter((name) => name.endsWith('.node'));
    expect(files.some((name) => name.includes('musl'))).toBe(true);
    const file = files.find((name) => name.includes('glibc')) ?? 'none for glibc';
    const { stdout } = spawnSync('readelf', ['--version-info', '--wide', join(prebuilds, platform, file)], {
      encoding: 'utf8',
    });
    const versions = [...stdout.matchAll(/GLIBC_2\.(\d+)/g)].map(([, minor]) => Number(minor));
    expect(versions.length).toBeGreaterThan(0);
    expect(Math.max(...versions)).toBeLessThanOrEqual(29);
  },
);
