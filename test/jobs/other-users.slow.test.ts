// Jobs of another user: what can be seen of them, and that nothing can be done to them. Neither of the two is root.
import { chmodSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { type Machine, NOBODY, whyNotNobody } from '../support/machine.ts';
import { Jobs, jobTest } from './background.ts';

const OTHER = NOBODY - 1;

let machine: Machine;
let owner: Jobs;
let other: Jobs;
jobTest((opened) => {
  machine = opened.machine;
  owner = new Jobs(machine, { uid: NOBODY });
  other = new Jobs(machine, { uid: OTHER });
});

describe.skipIf(whyNotNobody())("another user's jobs", () => {
  beforeEach(async () => {
    const words = machine.untilFile('go', 3, 'echo begun; ');
    await owner.submit(['--name', 'runs', '--note', 'theirs', '-n2', '--', ...words]);
    await owner.reach(1, 'running');
    await owner.submit(['--name', 'waits', 'true']);
  });
  const endWell = async () => {
    expect((await owner.list()).map(({ state }) => state)).toEqual(['running', 'waiting']);
    machine.touch('go');
    expect(await owner.wait(1)).toBe(3);
    expect(await owner.wait(2)).toBe(0);
  };

  test('are seen, and are no jobs of one’s own', async () => {
    for (const words of [
      'logs 1',
      'wait 2',
      'cancel runs',
      'cancel 2',
      'resubmit 1',
      'submit --after waits true',
    ]) {
      const job = /1|2|runs|waits/.exec(words)?.[0];
      expect(await other.run(words.split(' ')), words).toMatchObject({
        code: 64,
        stdout: '',
        stderr: expect.stringContaining(`you have no job ${job} on this machine`),
      });
    }
    expect((await other.run(['resubmit', 'lost'])).stdout).toBe('');
    expect(await other.list()).toEqual([]);
    const { stdout: theirs } = await other.run(['jobs', '--all', '--json', '--user', 'nobody']);
    expect(JSON.parse(theirs)).toMatchObject([
      { id: null, name: 'runs', note: 'theirs', state: 'running', output: null },
      { id: null, name: 'waits', state: 'waiting', output: null },
    ]);
    await endWell();
  });

  test('have numbers of their own: the same number means one’s own job', async () => {
    expect(await other.submit(['true'])).toBe(1);
    expect(await other.run(['cancel', '1'])).toMatchObject({ code: 0, stderr: '' });
    expect((await other.find(1)).state).toBe('cancelled');
    await endWell();
  });

  test('are not taken for one’s own where they are kept', async () => {
    const theirs = new Jobs(machine, {
      uid: OTHER,
      env: { XDG_STATE_HOME: machine.stateDirectory(NOBODY) },
    });
    const refused = async (why: RegExp) => {
      for (const words of [['logs', '1'], ['wait', '1'], ['cancel', '1'], ['resubmit', '1'], ['jobs']]) {
        const { code, stdout, stderr } = await theirs.run(words);
        expect({ words, code, stdout, stderr }).toMatchObject({
          code: words[0] === 'jobs' ? expect.toSatisfy((code) => code === 0 || code === 73) : 64,
          stdout: expect.stringMatching(/^(No jobs\. .*\n)?$/),
          stderr: expect.stringMatching(why),
        });
      }
      expect(await theirs.run(['submit', 'true'])).toMatchObject({ code: 73, stdout: '' });
    };
    await refused(/permission denied|no job 1/);
    // Not even where its owner lets everybody read: who has locks there, only he can see.
    const directory = owner.directoryOf(1);
    const parts = ['gpu-owner', 'gpu-owner/jobs'].map((name) => join(machine.stateDirectory(NOBODY), name));
    for (const path of [machine.stateDirectory(NOBODY), ...parts, join(directory, '..'), directory])
      chmodSync(path, 0o755);
    for (const name of readdirSync(directory)) chmodSync(join(directory, name), 0o644);
    await refused(/XDG_STATE_HOME=.* belongs to nobody, not to uid 65533, so it is ignored/);
    await endWell();
  });
});
