// The directory of shared ssh connections is in /tmp, where any user can have made one of its name before.
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { Connections } from '../../lib/fleet/ssh.ts';
import { NOBODY } from '../support/machine.ts';

const host = { name: 'gpu1', command: null };

/** Makes a new user's connections, and finds where they are. */
function newConnections(): { connections: Connections; path: string } {
  const jobs = mkdtempSync('/tmp/gpu-owner-connections-');
  const connections = new Connections(jobs);
  connections.make();
  const path = dirname(connections.to(host).connection ?? '');
  rmSync(jobs, { recursive: true });
  return { connections, path };
}

test('sockets are shared in a directory of one’s own, which is removed in the end', () => {
  const { connections, path } = newConnections();
  expect(path).toMatch(/^\/tmp\/gpu-owner-ssh-/);
  expect(connections.to(host, true).connection).toBeUndefined();
  connections.remove();
  expect(existsSync(path)).toBe(false);
});

test.skipIf(process.geteuid?.() !== 0)(
  'a directory of another user is neither used nor emptied: needs root',
  () => {
    const { connections, path } = newConnections();
    try {
      mkdirSync(join(path, 'inner'));
      writeFileSync(join(path, 'inner', 'file'), '');
      chmodSync(path, 0o777);
      chownSync(path, NOBODY, NOBODY);
      expect(connections.to(host).connection).toBeUndefined();
      connections.remove();
      expect(existsSync(join(path, 'inner', 'file'))).toBe(true);
    } finally {
      rmSync(path, { recursive: true });
    }
  },
);
