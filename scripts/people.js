// People on simulated machines, for pictures. As root they have names of their own, seen in here only, and the machine is called `lab`.
// Otherwise, and in containers that may not do that, all of them are you.
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir, userInfo } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { removeDirectory } from '../bench/leftovers.js';
import { Terminal } from './terminal.js';

const UIDS = { alice: 2001, bob: 2002, 'newcomer-ana': 2003, ben: 2004, cara: 2005, devika: 2006 };
/** The users of a lab. */
export const PEOPLE = ['newcomer-ana', 'ben', 'cara', 'devika'];
const INSIDE = 'GPU_OWNER_PICTURE';
const command = join(dirname(import.meta.dirname), 'bin/gpu-owner.cjs');
/** A program that stands for a training: it uses its GPUs until it is killed. Without values its arguments tell how. */
export function training(memory, utilization) {
  const use = memory === undefined ? 'sys.argv[1:3]' : JSON.stringify([memory, utilization]);
  return `import os, subprocess, sys
print(os.getpid(), flush=True)
memory, utilization = ${use}
for gpu in os.environ['CUDA_VISIBLE_DEVICES'].split(','):
    words = ['gpu-owner', 'simulate', 'occupy', gpu, '--name', 'python', '--memory', memory, '--utilization', utilization]
    last = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
last.wait()
`;
}

const as = (uid) => ['setpriv', `--reuid=${uid}`, `--regid=${uid}`, '--clear-groups', '--'];
const hasPeople = process.env[INSIDE] !== undefined;

/** Starts this program again where the people are, if it can. Then it ends with that. */
export function enterLab(program) {
  if (hasPeople || process.getuid() !== 0) return;
  // A mount and a host name of our own.
  const script = 'hostname lab && mount --bind "$0" /etc/passwd && exec "$@"';
  const unshare = (words, options) =>
    spawnSync('unshare', ['--mount', '--uts', 'sh', '-c', script, ...words], options);
  if (unshare(['/etc/passwd', ...as(UIDS.alice), 'test', '-x', command]).status !== 0) return;
  const place = mkdtempSync(join(tmpdir(), 'gpu-owner-passwd-'));
  const passwd = join(place, 'passwd');
  const lines = Object.entries(UIDS).map(([name, id]) => `${name}:x:${id}:${id}::/nonexistent:/bin/sh\n`);
  writeFileSync(passwd, readFileSync('/etc/passwd', 'utf8') + lines.join(''), { mode: 0o644 });
  const { status } = unshare([passwd, process.execPath, program, ...process.argv.slice(2)], {
    env: { ...process.env, [INSIDE]: '1' },
    stdio: 'inherit',
  });
  rmSync(place, { recursive: true });
  process.exit(status ?? 1);
}

/** Submits a job that uses so much memory of its GPUs, and so many percent of their time. */
export function submit(person, options, utilization, memory, ...more) {
  person.run('submit', ...options, '--', 'python', 'train.py', memory, String(utilization), ...more);
}

/**
 * An afternoon in a lab of eight GPUs: jobs of one and of several GPUs, an idle notebook, shares, one of which uses too much, a sweep,
 * a program without a claim, a booking, and four requests that wait.
 */
export function fillLab([ana, ben, cara, devika]) {
  const sft = ['--name', 'llama-sft', '--note', 'for Friday, please ask me', '--for', '8h'];
  submit(ana, ['-n', '2', '--devices', '0,1', ...sft], 97, '61GiB', '--config', 'llama.yaml');
  submit(ana, ['--devices', '2', '--name', 'notebook'], 0, '1GiB');
  submit(ben, ['--devices', '3', '--name', 'pretrain-small', '--preemptible'], 63, '40GiB');
  submit(cara, ['--devices', '4', '--memory', '24GiB', '--name', 'notebook'], 30, '19GiB');
  submit(devika, ['--devices', '4', '--memory', '20GiB', '--name', 'tune'], 17, '31GiB');
  const use = ['--memory', '47GiB', '--utilization', '88'];
  devika.start('gpu-owner', 'simulate', 'occupy', '5', '--name', 'python', ...use);
  const value = '$((180 + ({lr} * {lr} * 31 + {lr} * 7) % 97 * 60 / (10 + {lr})))';
  const task = `sleep 0.1; echo "{{\\"loss\\": 0.${value}}}" >$GPU_OWNER_RESULT`;
  const sweep = ['--devices', '6', '--gpus', '1', '--metric', 'loss', '--name', 'lr-search'];
  const words = ['--detach', ...sweep, '--grid', 'lr=1..300', '--', 'sh', '-c', task];
  ana.start('sh', '-c', 'cd && exec gpu-owner exp run "$@"', 'sh', ...words);
  cara.run('book', '--devices', '7', '--from', '+3h', '--for', '3h', '--note', 'demo for visitors');
}

/** Four requests that wait, in a lab that is full. */
export function fillQueue([ana, ben, cara, devika]) {
  submit(ben, ['-n', '4', '--name', 'vit-large', '--for', '12h'], 0, '1GiB', '--model', 'vit-l');
  submit(cara, ['-n', '8', '--name', 'full-node'], 0, '1GiB');
  submit(ana, ['--name', 'eval-llama'], 0, '1GiB');
  submit(devika, ['-n', '2', '--name', 'ablation', '--for', '2h'], 0, '1GiB');
  submit(ana, ['--after', '1', '--name', 'report'], 0, '1GiB');
}

/** Simulated machines, and whatever people start on them. */
export class Lab {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-pictures-'));
  #people = [];
  #children = [];

  constructor() {
    chmodSync(this.directory, 0o755);
    mkdirSync(join(this.directory, 'bin'));
    this.write('bin/gpu-owner', `#!/bin/sh\nexec ${command} "$@"\n`, 0o755);
    this.write('bin/python', '#!/bin/sh\nexec python3 "$@"\n', 0o755);
    this.write('train.py', training());
    const booker = hasPeople ? 'cara' : userInfo().username;
    this.write('config.yaml', `bookings: { gpus: 4, ahead: 14d, users: [${booker}] }\n`);
  }

  write(name, text, mode = 0o644) {
    writeFileSync(join(this.directory, name), text, { mode });
    return join(this.directory, name);
  }

  /** @param kind a kind of machine that the simulator knows, or a file that describes it @returns it, as variables */
  machine(name, kind) {
    const directory = join(this.directory, name);
    mkdirSync(directory);
    chmodSync(directory, 0o1777);
    return { GPU_OWNER_SIMULATE: kind, GPU_OWNER_SIMULATE_DIR: directory };
  }

  /** How this user starts programs on a machine. */
  person(name, machine) {
    const uid = UIDS[name];
    const home = join(machine.GPU_OWNER_SIMULATE_DIR, name);
    mkdirSync(home);
    if (hasPeople) chownSync(home, uid, uid);
    const env = {
      PATH: [join(this.directory, 'bin'), dirname(process.execPath), process.env.PATH].join(delimiter),
      HOME: home,
      HISTFILE: '/dev/null',
      USER: name,
      LOGNAME: name,
      PS1: `\\[\\e[1;32m\\]${hasPeople ? name : userInfo().username}@${hostname()}\\[\\e[0m\\]:~$ `,
      GPU_OWNER_MACHINE_CONFIG: join(this.directory, 'config.yaml'),
      XDG_STATE_HOME: home,
      XDG_CONFIG_HOME: home,
      ...machine,
    };
    const before = hasPeople ? as(uid) : [];
    const cwd = this.directory;
    const person = {
      env,
      terminal: (columns, rows, words, more = {}) =>
        new Terminal(columns, rows, [...before, ...words], { env: { ...env, ...more }, cwd }),
      start: (...words) => {
        const [program, ...args] = [...before, ...words];
        const child = spawn(program, args, { env, cwd, stdio: ['pipe', 'pipe', 'inherit'] });
        this.#children.push(child);
        return child;
      },
      run: (...words) => {
        const [program, ...args] = [...before, 'gpu-owner', ...words];
        const { status, stdout, stderr } = spawnSync(program, args, { env, cwd, encoding: 'utf8' });
        if (status !== 0) throw new Error(`${words.join(' ')}: ${stderr}`);
        return stdout;
      },
    };
    this.#people.push(person);
    return person;
  }

  async close() {
    for (const person of this.#people) {
      const ids = JSON.parse(person.run('jobs', '--json'))
        .filter(({ id, ended }) => id !== null && ended === null)
        .map(({ id }) => String(id));
      if (ids.length > 0) person.run('cancel', '--grace', '0s', ...ids);
    }
    const ended = this.#children
      .filter(({ exitCode, signalCode }) => exitCode === null && signalCode === null)
      .map((child) => {
        child.kill('SIGTERM');
        return new Promise((resolve) => child.once('exit', resolve));
      });
    await Promise.all(ended);
    removeDirectory(this.directory);
  }
}

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
