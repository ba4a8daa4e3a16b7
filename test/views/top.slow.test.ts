// `top` as its users meet it: in real pseudo-terminals, on simulated machines.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Jobs } from '../jobs/background.ts';
import { binaries } from '../support/binaries.ts';
import { launcher, Machine, output, pause, python, until } from '../support/machine.ts';
import { isAlive, processState, sendSignal, treeOf } from '../support/processes.ts';
import { type TerminalOptions, TestTerminal } from '../support/terminal.ts';

const CTRL_C = '\u0003';
const CTRL_Z = '\u001a';
const ESCAPE = '\u001b';
const DOWN = '\u001b[B';
const ENTER = '\r';

let machine: Machine;
let terminals: TestTerminal[];
beforeEach(() => {
  machine = new Machine(4);
  terminals = [];
});
afterEach(async () => {
  for (const terminal of terminals) terminal.close();
  await new Jobs(machine).end();
  await machine.close();
});

function open(words: string[], options: Partial<TerminalOptions> = {}): TestTerminal {
  const env = { ...machine.env, NO_COLOR: undefined, LC_ALL: undefined, LC_CTYPE: undefined, ...options.env };
  const terminal = new TestTerminal(words, { ...options, env: env as NodeJS.ProcessEnv });
  terminals.push(terminal);
  return terminal;
}

const openTop = (args: string[] = [], options: Partial<TerminalOptions> = {}) =>
  open([launcher, 'top', ...args], options);

/** A shell with job control that shows what its terminal is like. */
async function openShell(): Promise<TestTerminal> {
  const terminal = open(['bash', '--norc', '--noprofile', '-i'], { env: { PS1: 'prompt> ' } });
  await terminal.shows(/prompt>$/m);
  terminal.type('set +o history; ulimit -c 0; before=$(stty -g)\r');
  return terminal;
}

/** The process of `top` below another one. */
async function topBelow(pid: number): Promise<number> {
  const isTop = (candidate: number) => {
    try {
      return /\0top(\0|$)/.test(readFileSync(`/proc/${candidate}/cmdline`, 'latin1'));
    } catch {
      return false;
    }
  };
  let found: number | undefined;
  await until(() => {
    found = treeOf(pid).find(isTop);
    return found !== undefined;
  }, 'the process of top');
  return found as number;
}

async function occupy(gpu: string, ...options: string[]) {
  const simulator = join(binaries(), 'gpu-owner-simulator');
  const child = machine.start([simulator, 'occupy', gpu, '--name', 'python', ...options]);
  await output(child, /ready/);
  return child;
}

describe('the picture', () => {
  test('shows holders, jobs, notes, who waits, processes without a claim, and what users have, at 80x24', async () => {
    const jobs = new Jobs(machine);
    const script = 'sleep 1000';
    await jobs.submit(['-n', '2', '--name', 'train', '--note', 'seed 7', '--', 'sh', '-c', script]);
    await jobs.reach(1, 'running');
    await occupy('3', '--memory', '31GiB');
    await jobs.submit(['-n', '4', '--name', 'large', 'sleep', '1000']);
    await jobs.submit(['--after', '1', '--name', 'report', 'true']);
    await until(async () => (await jobs.find(2)).position === 1);
    const terminal = openTop();
    await terminal.shows(/^ 0 .* 1 train .*seed 7/m);
    await terminal.shows(/^ 2 .* free$/m);
    await terminal.shows(/^ 3 .*39%.* busy: python \(pid \d+/m);
    await terminal.shows(
      /WAITING\n +1\. \S+ +4 GPUs +2 large +\d\d:\d\d .*sleep 1000\n {6}needs 3 more of 4 GPUs: \S+ has 2; 1 is used/,
    );
    await terminal.shows(/ - {2}\S+ {2}job 3 report: after job 1/);
    await terminal.shows(/%SM PROCESS\n 3 +\d+ \S+ +31\.4 GiB +0 without a claim: \S/);
    await terminal.shows(/USERS\n \S+ +2 GPUs, .*, 1 waiting, 1 without a claim/);
    expect(terminal.lines[0]).toMatch(
      /4 GPUs: 1 free, 2 leased, 1 busy {2}1 waiting {2}1 without a claim +\d\d:\d\d:\d\d$/,
    );
    await until(() => /^q quit {2}\? help/.test(terminal.lines[23] ?? ''));
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
  });

  test('is redrawn when the size changes, and never higher than the terminal', async () => {
    const terminal = openTop();
    await terminal.shows(/^ 3 .* free$/m);
    terminal.resize(200, 50);
    await terminal.shows(/^ 3 +Simulated GPU .*0\.0\/80\.0G .* free$/m);
    await until(() => /^q quit/.test(terminal.lines[49] ?? ''));
    terminal.resize(40, 6);
    await until(() => /^ GPU/.test(terminal.lines[1] ?? '') && /^q quit/.test(terminal.lines[5] ?? ''));
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
  });

  test('has no colour with NO_COLOR, and nothing but ASCII where the locale has no Unicode', async () => {
    await occupy('0', '--memory', '40GiB', '--utilization', '90');
    const terminal = openTop([], { env: { NO_COLOR: '1', LANG: 'C' } });
    await terminal.shows(/^ 0 +#+\.+ +\d+% +\d+% +[*#]+ busy: python/m);
    terminal.type(DOWN);
    await terminal.shows(/^>0/m);
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
    expect(terminal.output).not.toMatch(/[^\0-\x7f]/);
    const colour = new RegExp(`${ESCAPE}[[d;]*[349]dm`);
    expect(terminal.output).not.toMatch(colour);
  });

  test('says that the driver hangs, shows the GPUs that answer, and keys still work', async () => {
    const terminal = openTop();
    await terminal.shows(/^ 3 .* free$/m);
    machine.set('gpu=1', 'hang=memory');
    await terminal.shows(/^ 1 .* unavailable: .*answer/m);
    await terminal.shows(/^ 0 .* free$/m);
    machine.set('hang=memory');
    await terminal.shows(/^ 0 .* unavailable: .*answer/m);
    terminal.type('?');
    await terminal.shows(/only rows with some text/);
    terminal.type('qq');
    await until(() => !terminal.isAlternate);
    machine.set('hang=off');
  });
});

describe('keys', () => {
  test('filter, select, and Esc undoes one after the other', async () => {
    await occupy('2', '--memory', '40GiB');
    const terminal = openTop();
    await terminal.shows(/^ 2 .*busy/m);
    const gpuLines = () => terminal.lines.slice(0, terminal.lines.indexOf(''));
    const order = () => gpuLines().flatMap((line) => /^[ >](\d) /.exec(line)?.[1] ?? []);
    await until(() => order().join('') === '0123');
    terminal.type('/BUSY');
    await terminal.shows(/^filter: BUSY_/m);
    await until(() => order().join('') === '2');
    terminal.type(`${ENTER}${DOWN}`);
    await terminal.shows(/^>2/m);
    terminal.type(ESCAPE);
    await until(() => order().length === 4, 'all GPUs');
    await terminal.shows(/^>2/m);
    terminal.type(ESCAPE);
    await until(() => !/^>/m.test(terminal.text));
    terminal.type(ESCAPE);
    expect(await terminal.ended).toBe(0);
  });
});

describe('the terminal is as before', () => {
  /** @param end ends `top`, whose PID it gets */
  async function restored(
    end: (terminal: TestTerminal, pid: number) => void,
    env = '',
  ): Promise<TestTerminal> {
    const terminal = await openShell();
    terminal.type(`${env} ${launcher} top\r`);
    await terminal.shows(/^ 3 .* free$/m);
    expect(terminal.isAlternate).toBe(true);
    // Keys are read from now on.
    await until(() => terminal.lines[23]?.startsWith('q quit') === true);
    const pid = await topBelow(terminal.child.pid as number);
    terminal.type('?');
    await terminal.shows(/only rows with some text/);
    end(terminal, pid);
    await until(() => !terminal.isAlternate && !terminal.isCursorHidden, 'the screen to be restored');
    terminal.type('echo "code $?"\r');
    await terminal.shows(/^code \d+$/m);
    terminal.type('[ "$before" = "$(stty -g)" ] && echo the same\r');
    await terminal.shows(/^the same$/m);
    return terminal;
  }

  test.each([
    ['q', 0, (terminal: TestTerminal) => terminal.type('qq')],
    ['Ctrl-C', 130, (terminal: TestTerminal) => terminal.type(CTRL_C)],
    ['SIGTERM', 143, (_: TestTerminal, pid: number) => sendSignal(pid, 'SIGTERM')],
  ])('after %s', async (_, code, end) => {
    const terminal = await restored(end);
    expect(terminal.text).toContain(`code ${code}`);
  });

  test('after an exception', async () => {
    const crash = join(machine.directory, 'crash.cjs');
    writeFileSync(crash, `process.on('SIGUSR2', () => { throw new Error('a bug'); });`);
    const terminal = await restored(
      (_, pid) => sendSignal(pid, 'SIGUSR2'),
      `NODE_OPTIONS=--require=${crash}`,
    );
    expect(terminal.text).toMatch(/Error: a bug/);
  });

  test('while Ctrl-Z has stopped top, which is redrawn afterwards', async () => {
    const terminal = await openShell();
    terminal.type(`${launcher} top\r`);
    await until(() => terminal.lines[23]?.startsWith('q quit') === true);
    const pid = await topBelow(terminal.child.pid as number);
    for (const stop of [() => terminal.type(CTRL_Z), () => sendSignal(pid, 'SIGTSTP')]) {
      stop();
      // The word may be from the first time: keys are the shell's only now.
      await until(() => processState(pid) === 'T', 'top to be stopped');
      await terminal.shows(/Stopped/);
      expect(terminal.isAlternate).toBe(false);
      expect(terminal.isCursorHidden).toBe(false);
      terminal.type('[ "$before" = "$(stty -g)" ] && echo "the same"\r');
      await terminal.shows(/^the same$/m);
      terminal.type('clear; fg\r');
      await until(() => terminal.isAlternate);
      await terminal.shows(/^ 3 .* free$/m);
    }
    terminal.type('q');
    await terminal.shows(/prompt>$/m);
    expect(isAlive(pid)).toBe(false);
  });
});

describe('without a terminal', () => {
  test('top prints plain lines once, and ends', async () => {
    const { code, stdout, stderr } = await machine.runCommand(['top']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(/^gpu-owner top .*\n GPU .*\n 0 .* free\n 1 .* free\n 2 .* free\n 3 .* free\n$/);
    expect(stdout).not.toContain('\u001b');
  });

  test('top with an interval goes on until nobody reads any longer', async () => {
    const script = `${launcher} top --interval 100ms | head -n 30 | grep -c '4 GPUs: 4 free'`;
    const { code, stdout } = await machine.run(['bash', '-c', script]);
    expect(code).toBe(0);
    expect(Number(stdout)).toBeGreaterThan(3);
  });

  test('mistakes and a missing driver are errors as of any command', async () => {
    const missing = await machine.runCommand(['top'], {
      env: { GPU_OWNER_SIMULATE: undefined, GPU_OWNER_NVML_LIBRARY: '/nowhere' },
    });
    expect(missing.code).toBe(69);
  });
});

describe('foreign records', () => {
  test('that are absurd or hostile are shown harmlessly', async () => {
    const child = machine.startCommand(['hold', '--placeholder', 'none', '--as', 'x']);
    await output(child, /visibleDevices/);
    const leases = (await machine.run(['sh', '-c', `ls ${machine.lockDirectory}/GPU-*.lease`])).stdout;
    const hostile = {
      user: '\u001b]0;title\u0007\u202eroot\u001b[2J',
      uid: -1,
      pid: 1e300,
      command: `\u001b[31m${'\u8bad\u7ec3'.repeat(500)}`,
      note: 'a\nb\u0000c\u009b31m',
      name: { toString: 1 },
      job: 'x',
      since: '+275760-09-13T00:00:00.000Z',
      until: Number.MAX_VALUE,
    };
    for (const file of leases.trim().split('\n')) {
      const record = { ...JSON.parse(readFileSync(file, 'utf8')), ...hostile };
      writeFileSync(file, JSON.stringify(record).padEnd(4095).concat('\n'), { flag: 'r+' });
    }
    const terminal = openTop();
    await terminal.shows(/^ 0 .* root +pid \?/m);
    for (const line of terminal.lines) expect(line.length).toBeLessThanOrEqual(80);
    expect(terminal.output).not.toMatch(/title|\u202e/);
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
  });

  test('of hundreds of waiters leave a job after them its position', async () => {
    const holder = machine.startCommand(['hold', '--placeholder', 'none', '-n', '4']);
    await output(holder, /visibleDevices/);
    const queue = join(machine.lockDirectory, 'line.lock');
    const slots = machine.start([
      python,
      join(import.meta.dirname, 'fixtures/full_queue.py'),
      '250',
      queue,
      'first',
    ]);
    await output(slots, /ready/);
    await machine.runCommand(['submit', '--', 'true']);
    const [{ jobs }] = JSON.parse((await machine.runCommand(['top', '--json'])).stdout);
    const [listed] = JSON.parse((await machine.runCommand(['jobs', '--json'])).stdout);
    expect(jobs.at(0)).toMatchObject({ id: 1, state: 'waiting', position: listed.position });
    expect(listed.position).toBeGreaterThan(200);
    await machine.runCommand(['cancel', '1']);
  });
});

describe('costs', () => {
  const calls = async (): Promise<number> => {
    const { stdout } = await machine.run([launcher, 'simulate', 'show', '--json']);
    return Object.values(JSON.parse(stdout).calls as Record<string, number>).reduce(
      (sum, count) => sum + count,
      0,
    );
  };

  test('the driver is looked at once per interval, also while somebody waits', async () => {
    const holder = machine.startCommand(['hold', '--placeholder', 'none', '-n', '4']);
    await output(holder, /visibleDevices/);
    machine.startCommand(['run', '--', 'true']);
    await until(async () => JSON.parse((await machine.runCommand(['queue', '--json'])).stdout).length === 1);
    machine.set('count=on');
    const before = await calls();
    await machine.runCommand(['top']);
    const perLook = (await calls()) - before;
    const terminal = openTop(['--interval', '250ms']);
    await terminal.shows(/ 1 waiting/);
    const [start, from] = [performance.now(), await calls()];
    await pause(1_500);
    const looks = ((await calls()) - from) / perLook;
    // Waiters look at the driver, too, but rarely.
    expect(looks).toBeLessThan(((performance.now() - start) / 250) * 1.5 + 1);
    await until(async () => (await calls()) - from > perLook);
    terminal.type('q');
    expect(await terminal.ended).toBe(0);
  });
});
