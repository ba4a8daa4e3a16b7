// Records docs/pictures/session.svg, the picture of the README: what two people do on a simulated machine with four GPUs, typed
// into a real shell, above a real `top`. Everything is as it happens; only what is typed is prepared.
//
// Usage: node scripts/recording.js [--fast] [FILE]   (default: docs/pictures/session.svg)
//
// With --fast, for tests, the picture is too quick to read.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { enterLab, Lab, pause, training } from './people.js';
import { DARK, recording } from './terminal.js';

enterLab(import.meta.filename);
const root = dirname(import.meta.dirname);
const isFast = process.argv.includes('--fast');
const [file = join(root, 'docs/pictures/session.svg')] = process.argv
  .slice(2)
  .filter((word) => word !== '--fast');
const target = resolve(file);
const COLUMNS = 100;
const KEY_MS = isFast ? 2 : 35;
const READING_MS = isFast ? 100 : 1_700;
const HISTORY_MS = isFast ? 0 : 6_000;
const END_MS = isFast ? 1_000 : 4_000;
const WAIT_TIMEOUT_MS = 60_000;
const MACHINE = '[gpu]\nname = NVIDIA H100 80GB HBM3\nmemory = 80GiB\ncount = 4\n';

async function shows(terminal, pattern) {
  const end = performance.now() + WAIT_TIMEOUT_MS;
  while (!pattern.test(terminal.text)) {
    if (performance.now() > end) throw new Error(`${pattern} isn't on the screen:\n${terminal.text}`);
    await pause(50);
  }
}

const lab = new Lab();
lab.write('train.py', training('61GiB', '97'));
lab.write('eval.py', training('23GiB', '64'));
lab.write('vision.py', training('38GiB', '81'));
const machine = lab.machine('lab', lab.write('lab.conf', MACHINE));
const open = [];
const [alice, bob] = ['alice', 'bob'].map((name) => lab.person(name, machine));
bob.start('gpu-owner', 'run', '--devices', '3', '--name', 'vision', '--', 'python', 'vision.py');
try {
  const top = alice.terminal(COLUMNS, 14, ['gpu-owner', 'top']);
  const shell = alice.terminal(COLUMNS, 12, ['bash', '--norc', '--noprofile']);
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
  for (const terminal of open) terminal.kill();
  await Promise.all(open.map(({ closed }) => closed));
  await lab.close();
}
