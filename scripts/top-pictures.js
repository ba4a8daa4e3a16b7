// Draws the pictures of docs/top.md: starts `top` on simulated machines in a real terminal, and writes what its screen shows as SVG.
//
// Usage: node scripts/top-pictures.js [DIRECTORY]   (default: docs/pictures)
//
// Three hosts are three simulated machines, which a stand-in for ssh starts a shell on.
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { LIGHT, picture, Terminal } from './terminal.js';

const root = dirname(import.meta.dirname);
const command = join(root, 'bin/gpu-owner.cjs');
const target = resolve(process.argv[2] ?? join(root, 'docs/pictures'));
const place = mkdtempSync(join(tmpdir(), 'gpu-owner-pictures-'));
const MINUTE_MS = 62_000;
const DGX = `driver = 580.65.06
cuda = 13.0
[gpu]
name = NVIDIA A100-SXM4-80GB
count = 6
[gpu]
name = NVIDIA A100-SXM4-80GB
mig = on
instance = 0 3g.40gb 2:0
instance = 1 2g.20gb 3:0
instance = 2 1g.10gb 9:0
[gpu]
name = NVIDIA A100-SXM4-80GB
`;
const children = [];
const machines = [];

/** A simulated machine, as an environment. */
function machine(name, kind) {
  const directory = join(place, name);
  mkdirSync(directory);
  const env = { ...process.env };
  for (const key of Object.keys(env)) if (/^(GPU_OWNER|XDG)_/.test(key)) delete env[key];
  Object.assign(env, {
    GPU_OWNER_SIMULATE: kind,
    GPU_OWNER_SIMULATE_DIR: directory,
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
    XDG_CONFIG_HOME: join(directory, 'none'),
    XDG_STATE_HOME: join(directory, 'state'),
    NODE_EXTRA_CA_CERTS: '',
  });
  machines.push(env);
  return env;
}

function start(env, ...words) {
  children.push(spawn(command, words, { env, stdio: ['pipe', 'ignore', 'inherit'] }));
}

function submit(env, options, utilization, memory, more = '') {
  const words = [
    'submit',
    ...options,
    '--',
    'python3',
    'train.py',
    memory,
    `${utilization}%`,
    ...more.split(' ').filter(Boolean),
  ];
  const { status, stderr } = spawnSync(command, words, { env, cwd: place, encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}

/** Computes until it is killed. */
const TRAIN = `import os, subprocess, sys
gpu = os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]
words = [sys.argv[1], '--utilization', sys.argv[2].rstrip('%'), '--name', 'python']
subprocess.run([${JSON.stringify(command)}, 'simulate', 'occupy', gpu, '--memory', *words], stdin=os.pipe()[0])
`;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Lets `top` run in a terminal, and writes its screen. @param keys typed before */
async function draw(name, env, words, columns, rows, keys = '') {
  const terminal = new Terminal(columns, rows, [command, 'top', ...words], { env });
  await pause(MINUTE_MS);
  terminal.type(keys);
  await pause(1_500);
  const title = `gpu-owner top on a terminal of ${columns} columns and ${rows} rows`;
  writeFileSync(join(target, `${name}.svg`), picture(terminal, title, LIGHT));
  terminal.type('q');
  await terminal.closed;
}

function end() {
  for (const child of children) child.kill('SIGKILL');
  for (const env of machines) {
    const { stdout } = spawnSync(command, ['jobs', '--json'], { env, encoding: 'utf8' });
    const ids = JSON.parse(stdout || '[]').flatMap(({ id, ended }) =>
      id === null || ended !== null ? [] : [String(id)],
    );
    if (ids.length > 0) spawnSync(command, ['cancel', '--grace', '0s', ...ids], { env });
  }
  rmSync(place, { recursive: true, force: true });
}

mkdirSync(target, { recursive: true });
try {
  writeFileSync(join(place, 'dgx.conf'), DGX);
  writeFileSync(join(place, 'train.py'), TRAIN);
  const dgx = machine('dgx', join(place, 'dgx.conf'));
  submit(
    dgx,
    ['-n', '2', '--devices', '0,1', '--name', 'pretrain', '--note', 'run 7 of 12', '--for', '6h'],
    93,
    '61GiB',
  );
  submit(dgx, ['--devices', '2', '--name', 'finetune', '--note', 'lr 3e-5'], 71, '38GiB');
  submit(dgx, ['--devices', '3', '--name', 'notebook'], 0, '6GiB');
  submit(dgx, ['--devices', '6:0', '--name', 'eval'], 0, '17GiB');
  start(dgx, 'simulate', 'occupy', '5', '--name', 'python', '--memory', '22GiB', '--utilization', '84');
  await pause(3_000);
  submit(dgx, ['-n', '4', '--name', 'sweep', '--note', 'waits for four'], 0, '1GiB');
  submit(dgx, ['-n', '6', '--name', 'large'], 0, '1GiB');
  submit(dgx, ['--after', '1', '--name', 'report'], 0, '1GiB');
  const h200 = machine('h200', 'h200x8');
  for (let gpu = 0; gpu < 6; gpu++)
    submit(
      h200,
      ['--devices', String(gpu), '--name', `seed-${gpu}`],
      60 + gpu * 7,
      `${40 + gpu * 15}GiB`,
      `--seed ${gpu}`,
    );
  const desk = machine('desk', 'rtx4090x2-display');
  submit(desk, ['--devices', '1', '--name', 'debug'], 30, '9GiB');
  await pause(2_000);
  // A shell on the machine of that name, in place of ssh.
  const ssh = join(place, 'ssh');
  const cases = Object.entries({ dgx, h200, desk }).map(
    ([name, { GPU_OWNER_SIMULATE: kind, GPU_OWNER_SIMULATE_DIR: directory }]) =>
      `${name}) export GPU_OWNER_SIMULATE=${kind} GPU_OWNER_SIMULATE_DIR=${directory} XDG_STATE_HOME=${directory}/state;;`,
  );
  const script = [
    '#!/bin/sh',
    'while [ "$1" != -- ]; do shift; done',
    'case $2 in',
    ...cases,
    'esac',
    `PATH=${join(place, 'bin')}:$PATH`,
    'exec sh -c "$3"',
    '',
  ];
  mkdirSync(join(place, 'bin'));
  writeFileSync(join(place, 'bin/gpu-owner'), `#!/bin/sh\nexec ${command} "$@"\n`);
  writeFileSync(ssh, script.join('\n'));
  for (const file of [ssh, join(place, 'bin/gpu-owner')]) chmodSync(file, 0o755);
  const viewer = { ...machine('viewer', 'h200x8'), GPU_OWNER_SSH: ssh };
  await Promise.all([
    draw('top-80x24', dgx, [], 80, 24, '\u001b[B\u001b[B'),
    draw('top-200x50', viewer, ['--hosts', 'dgx,h200,desk'], 200, 50),
  ]);
} finally {
  end();
}
