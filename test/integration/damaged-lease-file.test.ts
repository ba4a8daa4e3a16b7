// Anybody can lock any number of bytes of a GPU's lease file. The kernel goes through all of them for each question.
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { alice, bob, RUN } from '../support/holders.ts';
import { Machine, output, python, uuidOf, whyNotNobody } from '../support/machine.ts';
import { quickest } from '../support/time.ts';

const LOCKS = process.env.GPU_OWNER_SOAK ? 30_000 : 10_000;
/** As in lib/claims/locks/share-file.ts. */
const FIRST_UNIT = 2 ** 51;
const FIRST_NUMBER = FIRST_UNIT + 2 ** 21;

let machine: Machine;
afterEach(() => machine.close());

const why = whyNotNobody();
test.skipIf(why !== null)(
  `${LOCKS} locks on the bytes of units make one GPU unavailable, and slow nothing${why ? ` (${why})` : ''}`,
  async () => {
    machine = new Machine(2);
    expect((await machine.runCommand([...RUN, '-n', '2', '--', 'true'])).code).toBe(0);
    // The last one first: the kernel looks for the place of each from the front.
    const code = `import fcntl, struct, sys
file = open(${JSON.stringify(join(machine.lockDirectory, `${uuidOf(1)}.lease`))}, 'r+b')
lock = lambda kind, byte: fcntl.fcntl(file, 37, struct.pack('hhxxxxqqixxxx', kind, 0, byte, 1, 0))
lock(fcntl.F_RDLCK, 0)
lock(fcntl.F_WRLCK, ${FIRST_NUMBER})
for i in reversed(range(${LOCKS})): lock(fcntl.F_WRLCK, ${FIRST_UNIT} + 2 * i)
print('locked', flush=True)
sys.stdin.read()`;
    const stranger = machine.start([python, '-c', code], alice);
    await output(stranger, /locked/);
    const [free, damaged] = await machine.status();
    expect(free.state).toBe('free');
    expect(damaged.state).toBe('unavailable');
    // Root sees whose locks they are.
    expect(damaged.reason).toContain(`(pid ${stranger.pid}, nobody)`);
    expect(damaged.reason).toMatch(
      / has locked more of the lease file GPU-\S+\.lease than shares do\. End it\.$/,
    );
    const run = async (...words: string[]) => {
      const { code, stderr } = await machine.runCommand([...RUN, '--no-wait', ...words, '--', 'true'], bob);
      expect({ code, stderr: code === 0 ? '' : stderr }).toEqual({ code: 0, stderr: '' });
    };
    // Without a bound, status took 5 s, and a claim of the other GPU 11 s.
    expect(await quickest(2_500, () => machine.status())).toBeLessThan(2_500);
    expect(await quickest(2_500, () => run())).toBeLessThan(2_500);
    expect(await quickest(2_500, () => run('--memory', '1GiB'))).toBeLessThan(2_500);
  },
);
