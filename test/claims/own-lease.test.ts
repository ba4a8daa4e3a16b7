// A program that waits for GPUs which it holds itself, in any language, reads that in the reason.
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { launcher, Machine, python, root } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(1);
});
afterEach(() => machine.close());

const RUN = [launcher, 'run', '--no-wait', '--', 'true'];

/** Standard error of a program, with the PID of its first line of standard output as SELF. */
async function reasonOf(words: string[], env: Record<string, string> = {}): Promise<string> {
  const { stdout, stderr } = await machine.run(words, { env });
  const pid = /^\d+/.exec(stdout)?.[0];
  return stderr.replaceAll(`pid ${pid}`, 'pid SELF');
}

test('a script of the shell, with a hold of its own', async () => {
  const script = `echo $$; coproc H { exec "$1" hold; }; read -r line <&"\${H[0]}"; "$@"; sh -c '"$@"; exit' sh "$@"; :`;
  const stderr = await reasonOf(['bash', '-c', script, 'sh', ...RUN]);
  const reason =
    /GPU 0: leased by .*\(pid \d+: gpu-owner hold\); held for pid SELF, which also makes this claim: release it first/g;
  // Also from a process that the script has started.
  expect(stderr.match(reason), stderr).toHaveLength(2);
});

test('a program in Python, and a command that it starts', async () => {
  const program = `import gpu_owner, os, subprocess, sys
print(os.getpid(), flush=True)
gpus = gpu_owner.claim()
try:
    gpu_owner.claim(wait=False)
except gpu_owner.GPUUnavailableError as error:
    print(error, file=sys.stderr, flush=True)
subprocess.call(sys.argv[1:])`;
  const stderr = await reasonOf([python, '-c', program, ...RUN], {
    GPU_OWNER_COMMAND: launcher,
    PYTHONPATH: join(root, 'python'),
  });
  expect(
    stderr.match(/; held for pid SELF, which also makes this claim: release it first$/gm),
    stderr,
  ).toHaveLength(2);
});

test('a program in Node.js, and a command that it starts', async () => {
  const { stdout } = await machine.runScript(`
    import { spawnSync } from 'node:child_process';
    new GPUOwner({ placeholder: 'none' });
    try { new GPUOwner({ placeholder: 'none' }); } catch ({ message }) { console.log(message); }
    const [program, ...args] = ${JSON.stringify(RUN)};
    console.log(spawnSync(program, args, { encoding: 'utf8' }).stderr);`);
  expect(stdout).toMatch(/GPU 0: leased by .*; that is this process: release it first$/m);
  expect(stdout).toMatch(/GPU 0: leased by .*; that process started this one, and must release it first$/m);
});
