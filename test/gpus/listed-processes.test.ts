import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { describeListedProcess } from '../../lib/gpus/listed-processes.ts';

const namespace = vi.hoisted(() => ({ own: false }));
vi.mock(import('../../lib/gpus/containers.ts'), async (original) => ({
  ...(await original()),
  hasPidNamespace: () => namespace.own,
}));

const GONE = { name: null, user: null, uid: null, alive: 'gone' };
let proc: string;
let descriptors: string;
beforeEach(() => {
  vi.stubEnv('GPU_OWNER_SIMULATE', undefined);
  proc = mkdtempSync(join(tmpdir(), 'proc-'));
  descriptors = join(proc, String(process.pid), 'fd');
  mkdirSync(join(proc, String(process.pid)));
  for (const name of ['stat', 'status']) {
    writeFileSync(join(proc, String(process.pid), name), readFileSync(`/proc/self/${name}`));
  }
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(proc, { recursive: true });
});

function opens(...paths: string[]): void {
  mkdirSync(descriptors);
  paths.forEach((path, number) => {
    symlinkSync(path, join(descriptors, String(number)));
  });
}

describe('describeListedProcess', () => {
  it.each([
    '/dev/nvidiactl',
    '/dev/nvidia0',
    '/dev/nvidia-uvm',
    '/dev/dxg',
    '/dev/nvmap',
    '/dev/dri/renderD128',
  ])('describes a process that has %s open', (device) => {
    opens('/dev/null', device);
    expect(describeListedProcess(process.pid, proc).alive).toBe('alive');
    expect(describeListedProcess(process.pid, proc).name).not.toBeNull();
  });

  it('takes one that has nothing of the driver open for another process of that number', () => {
    opens('/dev/null', '/tmp/dev/nvidia0', 'socket:[123]', '/dev/dxgothic');
    expect(describeListedProcess(process.pid, proc)).toEqual(GONE);
  });

  it.each([
    ['/dev/nvidia0', 'alive'],
    ['/tmp/dev/nvidia0', 'gone'],
    ['/usr/lib/libcuda.so.1', 'gone'],
  ])('one that has closed all, and has %s mapped, is %s', (path, alive) => {
    opens('/dev/null');
    // The main thread has ended: only another one tells the mappings.
    for (const [thread, text] of [
      ['1', ''],
      [
        '2',
        `7f0-7f1 rw-s 00000000 00:06 500                        ${path}\n7f1-7f2 rw-p 00000000 00:00 0 \n`,
      ],
    ] as const) {
      mkdirSync(join(proc, String(process.pid), 'task', thread), { recursive: true });
      writeFileSync(join(proc, String(process.pid), 'task', thread, 'maps'), text);
    }
    expect(describeListedProcess(process.pid, proc).alive).toBe(alive);
  });

  it('believes the number where it may not look, and processes have the numbers of the host', () => {
    namespace.own = false;
    expect(describeListedProcess(process.pid, proc)).toMatchObject({
      alive: 'alive',
      name: expect.any(String),
    });
  });

  it('gives no name where it may not look, and the number may be the host’s', () => {
    namespace.own = true;
    expect(describeListedProcess(process.pid, proc)).toEqual({
      name: null,
      user: null,
      uid: null,
      alive: 'alive',
    });
    opens('/dev/nvidia0');
    expect(describeListedProcess(process.pid, proc).name).not.toBeNull();
  });

  it('calls a process “gone” that has ended', () => {
    expect(describeListedProcess(2 ** 22 - 1, proc)).toEqual(GONE);
  });
});
