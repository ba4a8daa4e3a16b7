// A job's GPUs are for processes that its user has started inside of it, whatever others write, lock and put into files.
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  command,
  finished,
  Machine,
  NOBODY,
  output,
  python,
  type Starting,
  signalAll,
  until,
  uuidOf,
  whyNotNobody,
} from '../support/machine.ts';
import { childrenOf, nameOf } from '../support/processes.ts';

const VICTIM = 1;
const ATTACKER = NOBODY;
const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const because = (why: string | null) => (why === null ? '' : `: ${why}`);
const noUsers = whyNotNobody();

let machine: Machine;
let locks: string;
beforeEach(() => {
  machine = new Machine(2);
  locks = join(machine.directory, 'locks');
  mkdirSync(locks);
  chmodSync(locks, 0o1777);
});
afterEach(() => machine.close());

const starting = (more: Starting = {}): Starting => ({
  ...more,
  env: {
    GPU_OWNER_LOCK_DIR: locks,
    GPU_OWNER_CONVENTIONS: 'none',
    GO: `${process.execPath} ${command}`,
    ...more.env,
  },
});

const RUN = ['run', '-n', '1', '--placeholder', 'none'];

function startJob(script: string, more: Starting = {}) {
  return machine.startCommand([...RUN, '--', 'sh', '-c', script], starting(more));
}

async function runJob(script: string, more: Starting = {}) {
  return finished(startJob(script, more));
}

/** Where a claim with this variable is made: on GPU 0, inside the job there, or beside it. */
function claimedBy(uid: number, job: string, prefix: string[] = []) {
  const words = [process.execPath, command, ...RUN, '--no-wait', '--', 'printenv', 'CUDA_VISIBLE_DEVICES'];
  const as = ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--'];
  return machine.run([...prefix, ...as, ...words], starting({ env: { GPU_OWNER_JOB: job } }));
}

const OUTSIDE = {
  code: 0,
  stdout: `${uuidOf(1)}\n`,
  stderr: expect.stringMatching(/^gpu-owner: warning: GPU_OWNER_JOB [^\n]+ It is ignored[^\n]*\n$/) as string,
};

function forge(...given: string[]) {
  const words = [python, fixture('forger.py'), locks, join(locks, `${uuidOf(0)}.lease`), ...given];
  return machine.start(words, starting({ uid: ATTACKER }));
}

const jobFiles = () => readdirSync(locks).filter((name) => name.startsWith('job-'));

describe.skipIf(noUsers !== null)(`another user${because(noUsers)}`, () => {
  const HIDEPID = [
    'unshare',
    '-m',
    '--propagation',
    'private',
    'sh',
    '-c',
    'mount -t proc -o hidepid=2 proc /proc && exec "$@"',
    'sh',
  ];
  const noHidepid =
    spawnSync(HIDEPID[0] as string, [...HIDEPID.slice(1), 'true']).status === 0
      ? null
      : 'nothing can be mounted here';

  test('does not get in by the number and a record of its own making, nor where /proc hides processes', async () => {
    const prefix = noHidepid === null ? HIDEPID : [];
    const job = startJob('echo begun $GPU_OWNER_JOB; read x', { uid: VICTIM });
    const number = await output(job, /begun (\d+)/);
    const lease = join(locks, `${uuidOf(0)}.lease`);
    const record = JSON.parse(readFileSync(lease, 'utf8'));
    record.pidNamespace = 'pid:[1]';
    writeFileSync(lease, JSON.stringify(record).padEnd(4095).concat('\n'), { flag: 'r+' });
    expect(await claimedBy(ATTACKER, number, prefix)).toMatchObject(OUTSIDE);
    // The same user does, whose /proc tells nothing against it.
    expect(await claimedBy(VICTIM, number, prefix)).toMatchObject({
      code: 0,
      stdout: `${uuidOf(0)}\n`,
      stderr: '',
    });
    // And root is another user, too, as under sudo.
    expect(await claimedBy(0, number, prefix)).toMatchObject(OUTSIDE);
  });

  test('does not get into a job by an epoch of its own in the lease file', async () => {
    const job = startJob('echo begun; read x; $GO run --no-wait --placeholder none -- true; echo inside $?', {
      uid: VICTIM,
    });
    await output(job, /begun/);
    const forger = forge();
    const number = await output(forger, /number (\d+)/);
    expect(await claimedBy(ATTACKER, number)).toMatchObject(OUTSIDE);
    forger.stdin?.end();
    await finished(forger, 'exit');
    job.stdin?.write('\n');
    expect(await output(job, /inside (\d+)/)).toBe('0');
  });

  test('a user who has locked all epochs beforehand stops a GPU from being leased, and gets into no job', async () => {
    const first = await machine.runCommand([...RUN, '-n', '2', '--', 'true'], starting({ uid: VICTIM }));
    expect(first).toMatchObject({ code: 0, stderr: '' });
    const lease = join(locks, `${uuidOf(0)}.lease`);
    const locker = machine.start([python, fixture('locker.py'), lease, 'ofd-read', '1', '0'], {
      uid: ATTACKER,
    });
    await output(locker, /locked/);
    const { stdout } = await runJob('echo $CUDA_VISIBLE_DEVICES', { uid: VICTIM });
    expect(stdout).toBe(`${uuidOf(1)}\n`);
    const both = await machine.runCommand(
      [...RUN, '-n', '2', '--no-wait', '--', 'true'],
      starting({ uid: VICTIM }),
    );
    expect(both.code).not.toBe(0);
    expect(both.stderr).toMatch(/a program that is not gpu-owner has locked the lease file .*`fuser -v/);
    locker.stdin?.end();
    await finished(locker, 'exit');
    expect((await runJob('echo $CUDA_VISIBLE_DEVICES', { uid: VICTIM })).stdout).toBe(`${uuidOf(0)}\n`);
  });

  test('does not get in by a file put in the place of the job’s, in a directory that is not sticky', async () => {
    chmodSync(locks, 0o777);
    const script =
      'echo begun $GPU_OWNER_JOB; read x; $GO run --no-wait --placeholder none printenv CUDA_VISIBLE_DEVICES';
    const job = startJob(script, { uid: VICTIM });
    const number = await output(job, /begun (\d+)/);
    const forger = forge(number);
    await output(forger, /number (\d+)/);
    expect(await claimedBy(ATTACKER, number)).toMatchObject(OUTSIDE);
    const end = finished(job);
    job.stdin?.write('\n');
    // Where everybody can remove it, the job can be kept from being proved. Nothing more.
    const { stderr } = await end;
    expect(stderr).toMatch(/GPU_OWNER_JOB names a job of another user/);
    forger.stdin?.end();
    await finished(forger, 'exit');
  });
});

describe('one’s own job', () => {
  test.each([
    [
      'Python’s subprocess, which closes descriptors',
      `${python} -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1].split()))' "$INNER"`,
    ],
    ['a user namespace without numbers', 'unshare --user $INNER'],
    ['bubblewrap', 'bwrap --dev-bind / / --unshare-pid --proc /proc $INNER'],
  ])('is found through %s', async (_, outer) => {
    const [tool = '', ...words] = outer.split(' ').slice(0, outer.startsWith('unshare') ? -1 : 1);
    if (spawnSync(tool, [...words, ...(tool === 'unshare' ? ['true'] : ['--version'])]).status !== 0) return;
    const inner = `${process.execPath} ${command} ${RUN.join(' ')} --no-wait -- printenv CUDA_VISIBLE_DEVICES`;
    const result = await runJob(outer, { env: { INNER: inner } });
    expect(result).toMatchObject({ code: 0, stdout: `${uuidOf(0)}\n`, stderr: '' });
  });

  test('keeps its file as long as anything of it lives, and while its keeper is replaced', async () => {
    const job = startJob('echo begun; setsid sleep 1000 & kill -9 $PPID; read x');
    const ended = finished(job, 'exit');
    await output(job, /was killed/);
    expect(jobFiles()).toHaveLength(1);
    job.stdin?.end();
    const left = () => childrenOf(job.pid as number).map(nameOf);
    await until(() => left().join() === 'sleep');
    expect(jobFiles()).toHaveLength(1);
    signalAll(childrenOf(job.pid as number), 'SIGKILL');
    await ended;
    expect(jobFiles()).toEqual([]);
  });
});
