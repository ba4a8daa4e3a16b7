// Where a seccomp filter refuses what the keeper needs, as some containers' do: nothing sleeps for ever, and no lease is lost
// silently.
import { spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { launcher, Machine, python, until } from '../support/machine.ts';

const refuse = (call: string) => [python, join(import.meta.dirname, '../fixtures/refuse.py'), call];
const [program = '', ...words] = [...refuse('signalfd4'), 'true'];
const noFilter = spawnSync(program, words).status === 0 ? '' : ': seccomp filters are not permitted here';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const states = async () => (await machine.status()).map(({ state }) => state);

describe.skipIf(noFilter !== '')(`where a system call is refused${noFilter}`, () => {
  test.each([['run', ['run', '--', 'true']]])(
    '%s ends with an error where signals can not be received, and gives the GPU back',
    async (_, args) => {
      const { code, stderr } = await machine.run([...refuse('signalfd4'), launcher, ...args]);
      expect(stderr).toMatch(
        /^gpu-owner: signals can't be received \(signalfd: Operation not permitted\)\. .*\n$/,
      );
      expect(code).toBe(71);
      expect(await states()).toEqual(['free']);
    },
  );

  test('a daemon keeps the lease that it has inherited where nobody can adopt it, and that is said', async () => {
    const PR_SET_CHILD_SUBREAPER = 36;
    const release = join(machine.directory, 'release');
    const daemon = `setsid sh -c 'until [ -e ${release} ]; do sleep 0.02; done' >/dev/null 2>&1 & exit 4`;
    const { code, stderr } = await machine.run([
      ...refuse(`prctl:${PR_SET_CHILD_SUBREAPER}`),
      ...[launcher, 'run', '--', 'sh', '-c', daemon],
    ]);
    expect(stderr).toMatch(
      /^gpu-owner: .*PR_SET_CHILD_SUBREAPER: Operation not permitted.* the claim of GPU 0 lasts only/,
    );
    expect(code).toBe(4);
    expect(await states()).toEqual(['leased']);
    mkdirSync(release);
    await until(async () => (await states())[0] === 'free');
    const next = await machine.run([
      ...refuse(`prctl:${PR_SET_CHILD_SUBREAPER}`),
      launcher,
      'run',
      '--',
      'true',
    ]);
    expect(next.code).toBe(0);
    expect(await states()).toEqual(['free']);
  });
});
