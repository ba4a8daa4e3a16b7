// Tools that begin to lock GPUs while ours are leased, and make their directories only then.
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, NOBODY, output, whyNotNobody } from '../support/machine.ts';
import { makeDirectory, placeOf, SHARED_DIRECTORIES, startOriginal } from '../support/other-tools.ts';

const users = whyNotNobody() === null ? ['the same user', 'another user'] : ['the same user'];

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

test.each(
  users.flatMap((user) =>
    SHARED_DIRECTORIES.filter(({ name }) => name !== 'safe-gpu').map(({ name, path }) => ({
      name,
      path,
      user,
    })),
  ),
)('a tool that starts later finds our GPU locked: $name in $path, by $user', async ({ name, path, user }) => {
  const job = machine.startCommand(['run', '--', 'sh', '-c', 'echo up; read line'], { umask: '077' });
  await output(job, /up/);
  const tryIt = async () => {
    const directory = makeDirectory(placeOf(machine, path)); // as they do: `mkdir -p`
    const child = startOriginal(machine, ['hold', name, directory, '0'], {
      umask: '022',
      ...(user === 'another user' ? { uid: NOBODY } : {}),
    });
    child.stdin?.end();
    const { stdout, stderr } = await finished(child);
    return [stdout.trim(), stderr];
  };
  expect(await tryIt()).toEqual(['refused', '']);
  job.stdin?.end();
  await finished(job);
  expect(await tryIt()).toEqual(['locked', '']);
});
