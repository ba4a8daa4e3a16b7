// Records docs/pictures/session.svg, the picture of the README: what two people do on a simulated machine with four GPUs, typed
// into a real shell, above a real `top`. Everything is as it happens; only what is typed is prepared.
//
// Usage: node scripts/recording.js [--fast] [FILE]   (default: docs/pictures/session.svg)
//
// With --fast nobody could read along: for tests.
//
// As root it makes the users alice and bob, seen in here only, and calls the machine `lab`. Otherwise, and in containers that may
// not do that, both are you.
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir, userInfo } from 'node:os';
import { delimiter, dirname, join, resolve } from 'node:path';
import { removeDirectory } from '../bench/leftovers.js';
import { DARK, recording, Terminal } from './terminal.js';

const root = dirname(import.meta.dirname);
const isFast = process.argv.includes('--fast');
const [file = join(root, 'docs/pictures/session.svg')] = process.argv
  .slice(2)
  .filter((word) => word !== '--fast');
const target = resolve(file);
const COLUMNS = 100;
const USERS = { alice: 2001, bob: 2002 };
const KEY_MS = isFast ? 2 : 35;
const READING_MS = isFast ? 100 : 1_700;
const HISTORY_MS = isFast ? 0 : 6_000;
const END_MS = isFast ? 1_000 : 4_000;
const WAIT_TIMEOUT_MS = 60_000;
const MACHINE = '[gpu]\nname = NVIDIA H100 80GB HBM3\nmemory = 80GiB\ncount = 4\n';
/** Stands for a training: it uses its GPUs until it is killed. */
const TRAIN = `import os, subprocess, sys
print(os.getpid(), flush=True)
options = {'train.py': ['61GiB', '97'], 'eval.py': ['23GiB', '64'], 'vision.py': ['38GiB', '81']}[os.path.basename(sys.argv[0])]
for gpu in os.environ['CUDA_VISIBLE_DEVICES'].split(','):
    words = ['gpu-owner', 'simulate', 'occupy', gpu, '--name', 'python', '--memory', options[0], '--utilization', options[1]]
    last = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
last.wait()
`;

const INSIDE = 'GPU_OWNER_RECORDING';
const hasUsers = process.env[INSIDE] !== undefined;
// A mount and a host name of our own.
const script = 'hostname lab && mount --bind "$0" /etc/passwd && exec "$@"';
const as = (id) => ['setpriv', `--reuid=${id}`, `--regid=${id}`, '--clear-groups', '--'];
const command = join(root, 'bin/gpu-owner.cjs');
const unshare = (words, options) =>
  spawnSync('unshare', ['--mount', '--uts', 'sh', '-c', script, ...words], options);
const probe = ['/etc/passwd', ...as(USERS.alice), 'test', '-x', command];
if (!hasUsers && process.getuid() === 0 && unshare(probe).status === 0) {
  const place = mkdtempSync(join(tmpdir(), 'gpu-owner-passwd-'));
  const passwd = join(place, 'passwd');
  const lines = Object.entries(USERS).map(([name, id]) => `${name}:x:${id}:${id}::/nonexistent:/bin/sh\n`);
  writeFileSync(passwd, readFileSync('/etc/passwd', 'utf8') + lines.join(''), { mode: 0o644 });
  const again = [process.execPath, import.meta.filename, ...process.argv.slice(2)];
  const { status } = unshare([passwd, ...again], {
    env: { ...process.env, [INSIDE]: '1' },
    stdio: 'inherit',
  });
  rmSync(place, { recursive: true });
  process.exit(status ?? 1);
}

const place = mkdtempSync(join(tmpdir(), 'gpu-owner-recording-'));
chmodSync(place, 0o755);
const bin = join(place, 'bin');
mkdirSync(bin);
writeFileSync(join(place, 'lab.conf'), MACHINE);
for (const name of ['train.py', 'eval.py', 'vision.py']) writeFileSync(join(place, name), TRAIN);
writeFileSync(join(bin, 'gpu-owner'), `#!/bin/sh\nexec ${command} "$@"\n`, { mode: 0o755 });
writeFileSync(join(bin, 'python'), '#!/bin/sh\nexec python3 "$@"\n', { mode: 0o755 });
const shared = join(place, 'machine');
mkdirSync(shared);
chmodSync(shared, 0o1777);

/** How this user starts programs. */
function user(name) {
  const id = USERS[name];
  const home = join(place, name);
  mkdirSync(home);
  if (hasUsers) chownSync(home, id, id);
  const env = {
    PATH: [bin, dirname(process.execPath), process.env.PATH].join(delimiter),
    HOME: home,
    HISTFILE: '/dev/null',
    USER: name,
    LOGNAME: name,
    PS1: `\\[\\e[1;32m\\]${hasUsers ? name : userInfo().username}@${hostname()}\\[\\e[0m\\]:~$ `,
    GPU_OWNER_SIMULATE: join(place, 'lab.conf'),
    GPU_OWNER_SIMULATE_DIR: shared,
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
    XDG_STATE_HOME: home,
    XDG_CONFIG_HOME: home,
  };
  const before = hasUsers ? as(id) : [];
  return {
    terminal: (rows, ...words) => new Terminal(COLUMNS, rows, [...before, ...words], { env, cwd: place }),
    start(...words) {
      const [program, ...args] = [...before, ...words];
      return spawn(program, args, { env, cwd: place, stdio: 'ignore' });
    },
    run(...words) {
      const [program, ...args] = [...before, 'gpu-owner', ...words];
      const { status, stdout, stderr } = spawnSync(program, args, { env, cwd: place, encoding: 'utf8' });
      if (status !== 0) throw new Error(`${words.join(' ')}: ${stderr}`);
      return stdout;
    },
  };
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function shows(terminal, pattern) {
  const end = performance.now() + WAIT_TIMEOUT_MS;
  while (!pattern.test(terminal.text)) {
    if (performance.now() > end) throw new Error(`${pattern} isn't on the screen:\n${terminal.text}`);
    await pause(50);
  }
}

const [alice, bob] = [user('alice'), user('bob')];
const open = [];
const other = bob.start(
  'gpu-owner',
  'run',
  '--devices',
  '3',
  '--name',
  'vision',
  '--',
  'python',
  'vision.py',
);
try {
  const top = alice.terminal(14, 'gpu-owner', 'top');
  const shell = alice.terminal(12, 'bash', '--norc', '--noprofile');
  open.push(top, shell);
  await shows(top, /3 .*81%/);
  await shows(shell, /\$ /);
  await pause(HISTORY_MS); // of top's minute

  const start = performance.now();
  const now = () => performance.now() - start;
  const type = async (line) => {
    for (const key of line) {
      shell.type(key);
      await pause(KEY_MS);
    }
    await pause(KEY_MS * 10);
    shell.type('\r');
  };
  await pause(READING_MS);
  await type('gpu-owner submit -n 3 --name llama -- python train.py');
  await shows(top, /0 .*97%[\s\S]*1 .*97%[\s\S]*2 .*97%/);
  await pause(READING_MS);
  await type('gpu-owner submit -n 2 --name eval -- python eval.py   # all four are taken: it waits');
  await shows(top, /1\. \S+ +2 GPUs +2 eval/);
  await pause(READING_MS);
  const stillMs = now();
  await pause(READING_MS);
  const [pid] = alice.run('logs', 'llama').split('\n');
  await type(`kill -9 ${pid}   # train.py has an accident`);
  await shows(top, /0 .*64%[\s\S]*1 .*64%[\s\S]*2 .*free/);
  await pause(READING_MS);
  await type('gpu-owner jobs');
  await shows(shell, /2 eval +running/);
  const durationMs = Math.round(now() + END_MS);
  await pause(END_MS);
  const panes = [
    { terminal: shell, name: 'a shell', frames: await shell.frames(start) },
    { terminal: top, name: 'gpu-owner top', frames: await top.frames(start) },
  ];
  const title =
    'Two jobs on four GPUs, recorded: the second waits in the queue, the first is killed, the second starts at once';
  writeFileSync(target, recording(panes, { title, theme: DARK, durationMs, stillMs }));
  console.log(`${target}: ${Math.round(durationMs / 1000)} s`);
} finally {
  const ids = JSON.parse(alice.run('jobs', '--json'))
    .filter(({ id, ended }) => id !== null && ended === null)
    .map(({ id }) => String(id));
  if (ids.length > 0) alice.run('cancel', '--grace', '0s', ...ids);
  const ended = new Promise((resolve) => other.once('exit', resolve));
  other.kill('SIGTERM');
  await ended;
  for (const terminal of open) terminal.kill();
  await Promise.all(open.map(({ closed }) => closed));
  removeDirectory(place);
}
