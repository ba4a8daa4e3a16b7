// Draws the pictures of `top` in docs/status.md: starts `top` on simulated machines in a real terminal, and writes what its screen shows as SVG.
//
// Usage: node scripts/top-pictures.js [DIRECTORY]   (default: docs/pictures)
//
// Three hosts are three simulated machines, which a stand-in for ssh starts a shell on.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { enterLab, fillLab, fillQueue, Lab, PEOPLE, pause, submit } from './people.js';
import { LIGHT, picture } from './terminal.js';

enterLab(import.meta.filename);
const target = resolve(process.argv[2] ?? join(dirname(import.meta.dirname), 'docs/pictures'));
const MINUTE_MS = 62_000;
const DGX = '[gpu]\nname = NVIDIA A100-SXM4-80GB\ncount = 8\n';

const lab = new Lab();
const people = (machine) => PEOPLE.map((name) => lab.person(name, machine));

/** Lets `top` run in a terminal, and writes its screen. @param keys typed before */
async function draw(name, person, env, words, columns, rows, keys = '') {
  const terminal = person.terminal(columns, rows, ['gpu-owner', 'top', ...words], env);
  await pause(MINUTE_MS);
  terminal.type(keys);
  await pause(1_500);
  const title = `gpu-owner top on a terminal of ${columns} columns and ${rows} rows`;
  writeFileSync(join(target, `${name}.svg`), picture(terminal, title, LIGHT));
  terminal.type('q');
  await terminal.closed;
}

mkdirSync(target, { recursive: true });
try {
  const machines = {
    dgx: lab.machine('dgx', lab.write('dgx.conf', DGX)),
    h200: lab.machine('h200', 'h200x8'),
    desk: lab.machine('desk', 'rtx4090x2-display'),
  };
  const here = people(machines.dgx);
  const [ana] = here;
  fillLab(here);
  await pause(15_000);
  fillQueue(here);
  const others = people(machines.h200);
  for (let gpu = 0; gpu < 6; gpu++) {
    const options = ['--devices', String(gpu), '--name', `seed-${gpu}`];
    submit(others[gpu % 3], options, 60 + gpu * 7, `${40 + gpu * 15}GiB`, '--seed', String(gpu));
  }
  const [, , , owner] = people(machines.desk);
  submit(owner, ['--devices', '1', '--name', 'debug'], 30, '9GiB');
  await pause(2_000);
  // A shell on the machine of that name, in place of ssh.
  const cases = Object.entries(machines).map(
    ([name, { GPU_OWNER_SIMULATE: kind, GPU_OWNER_SIMULATE_DIR: directory }]) =>
      `${name}) export GPU_OWNER_SIMULATE=${kind} GPU_OWNER_SIMULATE_DIR=${directory} XDG_STATE_HOME=${directory}/${PEOPLE[0]};;`,
  );
  const ssh = [
    '#!/bin/sh',
    'while [ "$1" != -- ]; do shift; done',
    'case $2 in',
    ...cases,
    'esac',
    'exec sh -c "$3"',
    '',
  ];
  const viewer = { GPU_OWNER_SSH: lab.write('ssh', ssh.join('\n'), 0o755) };
  await Promise.all([
    draw('top-80x24', ana, {}, [], 80, 24, '\u001b[B\u001b[B'),
    draw('top-200x50', ana, viewer, ['--hosts', 'dgx,h200,desk'], 200, 50),
  ]);
} finally {
  await lab.close();
}
