// gpu-owner simulate play: what happens is what the file says, when it says it, and nothing is left of it.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkScenario, parseScenario } from '../../simulator/scenarios/scenario.ts';
import { Simulator } from '../../simulator/scenarios/simulator.ts';
import { finished, Machine, output, root, until } from '../support/machine.ts';

const _GIB = 2 ** 30;
const scenarios = join(root, 'examples/scenarios');

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

function write(text: string): string {
  const path = join(machine.directory, 'scenario.yaml');
  writeFileSync(path, text);
  return path;
}

const play = (path: string, ...args: string[]) => machine.runCommand(['simulate', 'play', path, ...args]);

/** Starts a scenario. @returns its process, once it has printed that */
async function started(text: string, pattern: RegExp) {
  const child = machine.startCommand(['simulate', 'play', write(text)]);
  await output(child, pattern);
  return child;
}

describe('simulate play', () => {
  test.each(readdirSync(scenarios))('the example %s plays to its end, and leaves nothing', async (name) => {
    const { code, stdout, stderr } = await play(join(scenarios, name), '--speed', '1000');
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const times = [...stdout.matchAll(/^ *(\d+) s {2}\w/gm)].map(([, seconds]) => Number(seconds));
    expect(times.length).toBeGreaterThan(5);
    expect(times).toEqual([...times].sort((a, b) => a - b));
    const on = (text: string) => text.replace(/^\/.*$/m, '');
    const played = readdirSync(join(machine.directory, 'machines'))[0] as string;
    const fresh = new Machine(played);
    const show = ['simulate', `--machine=${played}`, 'show'];
    try {
      const shown = [await machine.runCommand(show), await fresh.runCommand(show)].map((run) =>
        on(run.stdout),
      );
      expect(shown[0]).toBe(shown[1]);
    } finally {
      await fresh.close();
    }
  });

  test('each step and what became of it are printed', async () => {
    const { code, stdout } = await play(join(scenarios, 'gpu-dies.yaml'), '--speed=1000');
    expect(code).toBe(0);
    expect(stdout).toContain('    0 s  occupy   train on GPU 1, with 60 GiB\n');
    expect(stdout).toContain('    6 s  set      gpu=1 lost=on\n');
    expect(stdout).toMatch(/memory {3}train to 61 GiB\n +7 s {2}ended {4}train: allocating memory failed/);
  });

  test.each([['mismatch', /the NVIDIA driver doesn't start: .*NVML code 18/]])(
    'driver: %s until driver: on',
    async (state, message) => {
      const child = await started(
        `steps:\n  - { at: 0s, driver: ${state} }\n  - { at: 1h, driver: on }\n`,
        /driver/,
      );
      await until(async () => (await machine.runCommand(['status'])).code === 69);
      expect((await machine.runCommand(['status'])).stderr).toMatch(message);
      const ended = finished(child);
      child.kill('SIGINT');
      expect((await ended).code).toBe(130);
      expect(await machine.states()).toEqual(Array(4).fill('free'));
      await play(
        write(`steps:\n  - { at: 0s, driver: ${state} }\n  - { at: 1s, driver: on }\n`),
        '--keep',
        '--speed=100',
      );
      expect(await machine.states()).toEqual(Array(4).fill('free'));
    },
  );

  test('kill -9 leaves no process', async () => {
    const text =
      'steps:\n  - { at: 0s, occupy: { gpu: [0, 1, 2] } }\n  - { at: 1s, set: gpu=3 lost=on }\n  - { at: 1h, end: python }\n';
    const child = machine.startCommand(['simulate', 'play', write(text), '--speed=10']);
    await output(child, /lost=on/);
    expect(machine.allProcesses().map(({ length }) => length)).toEqual([1, 1, 1, 0]);
    child.kill('SIGKILL');
    await until(() => machine.allProcesses().flat().length === 0);
  });

  test('settings are undone at the end, unless --keep', async () => {
    const path = write(
      'steps:\n  - { at: 0s, set: gpu=1 hidden-memory=3GiB }\n  - { at: 0s, set: [gpu=2, lost=on] }\n',
    );
    expect((await play(path)).code).toBe(0);
    expect(await machine.states()).toEqual(['free', 'free', 'free', 'free']);
    expect((await play(path, '--keep')).code).toBe(0);
    expect(await machine.states()).toEqual(['free', 'busy', 'unavailable', 'free']);
  });

  test('a process that can not start is reported, and the exit code is 1', async () => {
    const path = write(
      'steps:\n  - { at: 0s, set: gpu=1 compute-mode=prohibited }\n  - { at: 0s, occupy: { gpu: 1 } }\n',
    );
    const { code, stdout } = await play(path);
    expect(stdout).toMatch(/0 s {2}failed {3}python: making a context failed: unknown error \(999\)\n/);
    expect(code).toBe(1);
  });

  test('the machine comes from the command line, else the scenario, else the environment', async () => {
    writeFileSync(join(machine.directory, 'server.conf'), '[gpu]\nname = NVIDIA H200\n');
    const path = write('machine: ./server.conf\nsteps:\n  - { at: 0s, occupy: { gpu: 1 } }\n');
    expect((await play(path)).stderr).toMatch(
      /gpu: '1' is not a GPU of machine server-[0-9a-f]{8}; use an index from 0 to 0/,
    );
    expect((await play(path, '--machine', '2')).code).toBe(0);
    const env = { GPU_OWNER_SIMULATE: undefined };
    const without = write('steps:\n  - { at: 0s, end: x }\n');
    const { code, stderr } = await machine.runCommand(['simulate', 'play', without], { env });
    expect(stderr).toMatch(/no process 'x' runs at 0 s/);
    expect(code).toBe(78);
    const plain = write('steps:\n  - { at: 0s, set: teardown=1 }\n');
    expect((await machine.runCommand(['simulate', 'play', plain], { env })).stderr).toMatch(
      /on which machine\? Use --machine/,
    );
  });
});

describe('mistakes in a scenario are found before anything happens', () => {
  const first = '  - { at: 0s, occupy: { gpu: 0 } }\n';

  /** Does what comes before the first step. */
  function check(text: string): void {
    for (const [name, value] of Object.entries(machine.env)) vi.stubEnv(name, value);
    const simulator = new Simulator('4');
    const scenario = parseScenario(text, 'scenario.yaml');
    checkScenario(scenario, 'scenario.yaml', simulator.show(), (words) => simulator.checkSet(words));
  }
  afterEach(() => {
    vi.unstubAllEnvs();
  });

  test.each<[text: string, line: number, message: RegExp]>([
    ['', 1, /a scenario is a map with machine, speed and steps/],
    ['steps: [', 1, /not valid YAML/],
    ['steps: []', 1, /it has no steps; add/],
    ['speed: 0\nsteps:\n  - { at: 0s, end: x }\n', 1, /speed: '?0'? is not a speed; use 1, 0\.5 or 10/],
    ['stpes:\n', 1, /a scenario has no 'stpes'; did you mean steps\?/],
    [`steps:\n${first}  - { end: python }\n`, 3, /a step without a time; add `at: 5s`/],
    [
      `steps:\n${first}  - { at: 5, end: python }\n`,
      3,
      /at: '5' is not a duration without its unit; use '5s', '5m', '5h' or '5d'/,
    ],
    [
      `steps:\n${first}  - { at: 5s }\n`,
      3,
      /a step has one action, occupy, memory, end, set or driver; this one has 0/,
    ],
    [`steps:\n${first}  - { at: 5s, end: python, set: lost=on }\n`, 3, /this one has 2/],
    [`steps:\n${first}  - { at: 5s, ends: python }\n`, 3, /a step has no 'ends'; did you mean end\?/],
    [
      `steps:\n${first}  - { at: 5s, end: train }\n`,
      3,
      /end: no process 'train' runs at 5 s; there run 'python' then/,
    ],
    [`steps:\n${first}  - { at: 5s, memory: { process: python } }\n`, 3, /memory has no to; add it/],
    [
      `steps:\n${first}  - { at: 5s, memory: { process: python, to: much } }\n`,
      3,
      /to: 'much' is not a size/,
    ],
    [
      `steps:\n${first}  - { at: 5s, memory: { process: python, to: 1TiB } }\n`,
      3,
      /no GPU of 4 has so much memory/,
    ],
    [
      `steps:\n${first}  - { at: 5s, occupy: { gpu: 0 } }\n`,
      3,
      /'python' runs already at 5 s; give one of them another name/,
    ],
    [
      `steps:\n${first}  - { at: 5s, occupy: { gpu: 4, as: b } }\n`,
      3,
      /gpu: '4' is not a GPU of machine 4; use an index from 0 to 3/,
    ],
    [`steps:\n${first}  - { at: 5s, occupy: { as: b } }\n`, 3, /occupy has no gpu; add it/],
    [
      `steps:\n${first}  - { at: 5s, occupy: { gpu: 0, as: b, for: 0s } }\n`,
      3,
      /for: a process runs for some time/,
    ],
    [
      `steps:\n${first}  - { at: 5s, occupy: { gpu: 0, as: b, type: x } }\n`,
      3,
      /type: 'x' is not a type; use compute, /,
    ],
    [
      `steps:\n${first}  - { at: 5s, occupy: { gpu: 0, as: b, utilization: 101 } }\n`,
      3,
      /'101' is not a percentage/,
    ],
    [`steps:\n${first}  - { at: 5s, set: gpu=0 lost=maybe }\n`, 3, /lost=maybe: expected on or off$/m],
    [`steps:\n${first}  - { at: 5s, set: gpu=0 mig=on frob=1 }\n`, 3, /unknown key frob$/m],
    [
      `steps:\n${first}  - { at: 5s, driver: away }\n`,
      3,
      /driver: 'away' is not a state; use off, mismatch or on/,
    ],
  ])('%j', async (text, line, message) => {
    const mistake = expect.toSatisfy(({ message: told }: Error) => {
      expect(told).toMatch(message);
      return told.startsWith(`scenario.yaml:${line}: `);
    });
    expect(() => check(text)).toThrow(mistake);
  });

  test('mistakes in arguments are found, too', async () => {
    expect((await machine.runCommand(['simulate', 'play'])).stderr).toMatch(/which scenario\? Name one file/);
    expect((await play('/nonexistent.yaml')).stderr).toMatch(
      /nonexistent\.yaml: it can't be read \(ENOENT\); name a scenario/,
    );
    expect((await play(write('steps:\n  - { at: 0s, set: teardown=1 }\n'), '--speed=fast')).stderr).toMatch(
      /--speed: 'fast' is not a speed/,
    );
  });
});
