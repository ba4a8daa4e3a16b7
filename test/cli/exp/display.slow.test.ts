// The display on a terminal.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Experiment } from '../../support/experiment.ts';
import { command, python } from '../../support/machine.ts';

let experiment: Experiment;
beforeEach(() => {
  experiment = new Experiment(2);
});
afterEach(() => experiment.close());

interface Seen {
  screens: string[];
  wrapped: string[];
  status: number;
}

/** Runs `exp run` on a terminal. @param options of terminal.py */
async function see(size: [number, number], options: string[], args: string[], env = {}): Promise<Seen> {
  const terminal = join(import.meta.dirname, 'fixtures/terminal.py');
  const words = [
    python,
    terminal,
    ...size.map(String),
    ...options,
    process.execPath,
    command,
    'exp',
    'run',
    ...args,
  ];
  const { stdout, stderr } = await experiment.machine.run(words, {
    cwd: experiment.project,
    env: { TERM: 'xterm-256color', LC_ALL: 'C.UTF-8', CI: undefined, NO_COLOR: undefined, ...env },
  });
  if (stderr !== '') throw new Error(stderr);
  return JSON.parse(stdout);
}

const sweep = (...args: string[]) => ['--gpus', '2', '--grid', 'seed=1..6', ...experiment.train(...args)];

test('the display has a bar and counts; only the summary is left at the end', async () => {
  const { screens, wrapped, status } = await see([80, 24], [], sweep('--seconds', '0.7', 'x=1'));
  expect(status).toBe(0);
  expect(wrapped).toEqual([]);
  // Both lines at once: the terminal may have read only the first part of a frame.
  const middle = /^\u2588+\u2591+ {2}[2-4]\/6 \(\d+\.\d%\).* left\n\d completed, \d running, \d waiting$/m;
  expect(
    screens.some((screen) => middle.test(screen)),
    screens.join('\n----\n'),
  ).toBe(true);
  const last = screens.at(-1) as string;
  expect(last).toMatch(/6\/6 \(100\.0%\)/);
  expect(last.match(/\d+\/6/g)).toHaveLength(1);
  expect(last).toMatch(/^6 tasks: 6 completed, 0 running, 0 waiting$/m);
});

test('no line of the display is too long on a small terminal, also after it was made smaller', async () => {
  const narrow = /^[1-5]\/6 \(/m; // no room for a bar
  const { screens, wrapped, status } = await see(
    [70, 6],
    ['--resize', '30', '--resized', narrow.source],
    sweep('--seconds', '0.8', 'x=1'),
  );
  expect(status).toBe(0);
  const summary = /^(6 tasks|Generated|Marked|results)/;
  expect(wrapped.filter((line) => !summary.test(line))).toEqual([]);
  expect(screens.some((screen) => narrow.test(screen))).toBe(true);
});

test('Ctrl-C says that it finishes what runs, and twice ends at once', async () => {
  const { screens, status } = await see(
    [80, 24],
    ['--interrupt', '2 running', '--interrupt', 'a second Ctrl-C stops them'],
    sweep('--stubborn', '--wait-for', 'never'),
  );
  expect(status).toBe(130);
  const last = screens.at(-1);
  expect(last).toMatch(/^ending: running tasks finish, and no more are started/m);
  expect(last).toMatch(/^ending at once/m);
  expect(last).toMatch(/^6 tasks: 0 completed, 0 running, 6 waiting$/m);
  // Nothing of a longer display is left behind the last line.
  expect(last).toMatch(/^a new start continues where this one stopped$/m);
  expect(last).not.toMatch(/^ending when/m);
  expect(
    screens.some((screen) => /^ending when running tasks finish; a second Ctrl-C stops them$/m.test(screen)),
  ).toBe(true);
});

test('the display shows failures as they come', async () => {
  writeFileSync(join(experiment.project, 'go'), '');
  const { screens } = await see([80, 24], [], sweep('--seconds', '0.6', '--exit', '2'));
  const shown = screens.find((screen) => /^last failures\n {2}grid_\d_\d: exit code 2/m.test(screen));
  expect(shown).toBeDefined();
});

test('exp run prints plain lines in a job of a CI, and with TERM=dumb', async () => {
  for (const env of [{ CI: 'true' }, { TERM: 'dumb' }]) {
    const { screens } = await see([80, 24], [], sweep('x=1'), env);
    const last = screens.at(-1) as string;
    expect(last).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (Task|6 tasks)/m);
    expect(last).not.toMatch(/\u2588/);
  }
});
