// gpu-owner as the first process of a container.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { childrenOf, stat } from '../support/keeper.ts';
import { finished, launcher, Machine, output, UNSHARE, until, whyNoNamespace } from '../support/machine.ts';
import { signalLiving } from '../support/processes.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

describe.skipIf(whyNoNamespace() !== null)(
  'as the first process of a container (needs root, for namespaces)',
  () => {
    test('SIGTERM drains the worker, and no zombies stay', async () => {
      // The process that it leaves behind ends, and no parent is left to collect it.
      const orphan =
        '(setsid sh -c "sleep 0.05" &) ; sleep 0.2; touch started; until [ -e go ]; do sleep 0.02; done';
      const words = ['exp', 'run', '--gpus', '1', '--grid', 'a=1,2', '--shell', '--', orphan];
      const child = machine.start([...UNSHARE, launcher, ...words], { cwd: machine.directory });
      const ended = finished(child);
      await output(child, /Assigned/);
      await until(() => readdirSync(machine.directory).includes('started'));
      const [first = 0] = childrenOf(child.pid as number);
      expect(readFileSync(`/proc/${first}/status`, 'utf8')).toMatch(/^NSpid:\s+\d+\s+1$/m);
      const family = (pid: number): number[] => [pid, ...childrenOf(pid).flatMap(family)];
      await until(() => family(first).every((pid) => stat(pid)?.state !== 'Z'));
      signalLiving(first, 'SIGTERM');
      writeFileSync(join(machine.directory, 'go'), '');
      const { code, stdout, stderr } = await ended;
      expect(code, stderr).toBe(143);
      expect(stdout + stderr).toMatch(/1 completed, 0 running, 1 waiting/);
    });
  },
);
