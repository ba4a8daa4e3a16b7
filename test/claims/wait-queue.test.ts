import { chmodSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { LockDirectory } from '../../lib/claims/locks/lock-directory.ts';
import { ownRecord } from '../../lib/claims/locks/record.ts';
import { Slot } from '../../lib/claims/queue/slot.ts';
import { readWaiters } from '../../lib/claims/queue/wait-queue.ts';
import { bootId } from '../../lib/platform/system.ts';

let path: string;
let directory: LockDirectory;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
  chmodSync(path, 0o1777);
  directory = LockDirectory.open(path, {});
});
afterEach(() => rmSync(path, { recursive: true }));

function stand(uuids: string[], command = 'python train.py'): Slot {
  const slot = Slot.join(directory, ownRecord(bootId(), command), {
    count: 2,
    uuids,
    scope: null,
    class: 'normal',
  });
  if (slot === null) throw new Error('no slot');
  return slot;
}

test('what a waiter wants can be read by others as long as it stands there', () => {
  const first = stand(['GPU-1', 'GPU-2']);
  const second = stand(['GPU-2']);
  expect([...readWaiters(directory)]).toMatchObject([
    { slot: 0, count: 2, uuids: ['GPU-1', 'GPU-2'], scope: null, isSuspended: false },
    { slot: 1, uuids: ['GPU-2'] },
  ]);
  expect([...readWaiters(directory, second.number)]).toHaveLength(1);
  first.updateRequest(ownRecord(bootId()), { count: 1, uuids: ['GPU-3'], scope: '7' });
  expect([...readWaiters(directory)][0]).toMatchObject({ count: 1, uuids: ['GPU-3'], scope: '7' });
  first.leave();
  expect([...readWaiters(directory)].map(({ slot }) => slot)).toEqual([1]);
  second.leave();
  expect([...readWaiters(directory)]).toEqual([]);
});

test('a request for more GPUs than fit into a record lists as many as fit', () => {
  const uuids = Array.from(
    { length: 300 },
    (_, i) => `MIG-00000000-0000-4000-8000-${String(i).padStart(12, '0')}`,
  );
  const slot = stand(uuids, `python ${'ü"\\'.repeat(200)}`);
  const [waiter] = [...readWaiters(directory)];
  expect(waiter?.uuids.length).toBeGreaterThan(50);
  expect(waiter?.uuids).toEqual(uuids.slice(0, waiter?.uuids.length));
  slot.leave();
});
