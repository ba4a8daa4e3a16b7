// Anybody can lock any number of bytes of a GPU's lease file. The kernel goes through all of them for each question.
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { alice, RUN } from '../support/holders.ts';
import { command, Machine, output, python, uuidOf, whyNotNobody } from '../support/machine.ts';

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
    /** The processor time of a command, in s: however busy the machine is. */
    const costOf = async (...words: string[]) => {
      const script = '"$0" "$@" >&2 || exit; times';
      const { code, stdout, stderr } = await machine.run([
        'bash',
        '-c',
        script,
        process.execPath,
        command,
        ...words,
      ]);
      expect(code).toBe(0);
      const [, , user, , system] = /(\d+)m([\d.]+)s (\d+)m([\d.]+)s\s*$/.exec(stdout) ?? [];
      return { said: stderr, seconds: Number(user) + Number(system) };
    };
    // Without a bound, status took 5 s, and a claim of the other GPU 11 s.
    const { said, seconds } = await costOf('status', '--json');
    const [free, damaged] = JSON.parse(said);
    expect([free.state, damaged.state]).toEqual(['free', 'unavailable']);
    expect(damaged.reason).toMatch(/^a program that is not gpu-owner has locked the lease file .*GPU-/);
    const claim = [...RUN, '--no-wait'];
    const whole = await costOf(...claim, '--', 'true');
    const share = await costOf(...claim, '--memory', '1GiB', '--', 'true');
    for (const each of [seconds, whole.seconds, share.seconds]) expect(each).toBeLessThan(2.5);
  },
);
