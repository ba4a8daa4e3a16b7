import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'vitest';
import { EXCLUSIVE, FLOCK, native } from '../../lib/native.ts';
import { kernelLocks } from '../../lib/platform/kernel-locks.ts';
import { python, root } from '../support/machine.ts';
import { soakTest } from '../support/time.ts';

soakTest('no lock of /proc/locks is missed while others come and go', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'locks-'));
  const path = join(directory, 'held');
  const descriptor = openSync(path, 'w');
  const busy = [0, 1].map(() =>
    spawn(python, [join(root, 'test/fixtures/lock_churn.py'), directory], {
      stdio: ['pipe', 'pipe', 'inherit'],
    }),
  );
  try {
    expect(native().lockTry(descriptor, FLOCK, EXCLUSIVE, 0, 0)).toBe(0);
    await Promise.all(busy.map(({ stdout }) => once(stdout, 'data')));
    const ours = `:${statSync(path).ino} `;
    let missed = 0;
    for (let i = 0; i < 1_500; i++) if (!kernelLocks()?.includes(ours)) missed++;
    expect(missed).toBe(0);
  } finally {
    for (const child of busy) child.stdin.end();
    await Promise.all(busy.map((child) => child.exitCode ?? once(child, 'exit')));
    closeSync(descriptor);
    rmSync(directory, { recursive: true });
  }
});
