// A sweep on three hosts over a slow network that loses pieces and is cut, while every kind of process is killed: each task is run by one
// command at a time, and has one row. Witnesses outside count starts.
import type { ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { finished, launcher, type Machine, pause, python, until } from '../support/machine.ts';
import { nameOf, processesWith, sendSignal, treeOf } from '../support/processes.ts';
import { Random } from '../support/random.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';
import { mayBeKilled } from './monkey.ts';
import { processesOf } from './processes.ts';
import { type ResultRow, readTestimony, violationsIn, violationsOfTables } from './witness.ts';

const SOAK = Boolean(process.env.GPU_OWNER_SOAK);
const TASKS = SOAK ? 2_000 : 25;
/** Between two deeds, and how long there are any, in ms. */
const [REST, MISCHIEF] = SOAK ? [2_000, 600_000] : [350, 3_500];
const [SILENCE_MS, MAX_CUT_MS] = SOAK ? [10_000, 20_000] : [2_500, 4_000];
const LIMIT_MS = SOAK ? 3_000_000 : 110_000;
const NAMES = ['h1', 'h2', 'h3'];
const fixtures = join(import.meta.dirname, 'fixtures');
const seed = Number(process.env.GPU_OWNER_CHAOS_SEED ?? Math.floor(Math.random() * 1e6));

/** A way to sshd: 25 ms each way, 250 ms more for one piece of fifty, as TCP repeats it. Cut, it keeps what it has until it is mended. */
class Way {
  readonly #random: Random;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;

  constructor(target: number, random: Random) {
    this.#random = random;
    this.#server = createServer((near) => {
      const far = connect(target, '127.0.0.1');
      this.#join(near, far);
      this.#join(far, near);
    });
  }

  async open(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    return (this.#server.address() as { port: number }).port;
  }

  #join(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    if (this.#isCut) from.pause();
    let due = 0;
    from.on('data', (piece) => {
      due = Math.max(due, performance.now() + 25 + (this.#random.float() < 0.02 ? 250 : 0));
      setTimeout(() => to.write(piece), due - performance.now());
    });
    from.on('error', () => {});
    from.on('close', () => {
      this.#sockets.delete(from);
      to.destroy();
    });
  }

  async cut(ms: number): Promise<void> {
    this.#isCut = true;
    for (const socket of this.#sockets) socket.pause();
    await pause(ms);
    this.#isCut = false;
    for (const socket of this.#sockets) socket.resume();
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

let undo: (() => unknown)[] = [];
afterEach(async () => {
  for (const each of undo.reverse()) await each();
  undo = [];
});

test.skipIf(whyNoSSHD() !== null)(
  `${TASKS} tasks on three hosts have one row each, GPU_OWNER_CHAOS_SEED=${seed}`,
  { timeout: LIMIT_MS },
  async () => {
    const random = new Random(seed);
    const hosts = await Hosts.start();
    undo.push(() => hosts.close());
    const project = join(hosts.viewer.directory, 'project');
    const witness = join(hosts.viewer.directory, 'witness');
    for (const directory of [project, witness]) mkdirSync(directory);
    const machines: Machine[] = [];
    const ways: Way[] = [];
    for (const name of NAMES) {
      const way = new Way(hosts.port, random);
      undo.push(() => way.close());
      ways.push(way);
      const machine = hosts.add(name, {
        program: `. "$HOME/witness"; exec ${process.execPath} ${launcher} "$@"`,
        config: [`Port ${await way.open()}`, `HostKeyAlias [127.0.0.1]:${hosts.port}`],
      });
      machines.push(machine);
      const variables = `WITNESS_PLACE=${name}- WITNESS_DIRECTORY=${witness} WITNESS_LOCKS=${machine.lockDirectory}`;
      const path = join(machine.directory, 'home/witness');
      writeFileSync(path, `export PYTHONDONTWRITEBYTECODE=1 ${variables}\n`);
    }
    const command = [python, '-S', join(fixtures, 'honest_task.py'), '0.3'];
    const file = `command: ${JSON.stringify(command)}\nchaos:\n  combinations:\n    - n: ${JSON.stringify(Array.from({ length: TASKS }, (_, n) => n))}\n`;
    mkdirSync(join(project, 'configs'));
    writeFileSync(join(project, 'configs/config_exp.yaml'), file);
    const env = {
      ...{ ...hosts.env, GPU_OWNER_BUILD: undefined },
      GPU_OWNER_TIMEOUTS: `silence:${SILENCE_MS},silenceGrace:1000`,
    };
    const start = (words: string[]) => hosts.viewer.start(words, { env, cwd: project });

    let manager: ChildProcess | null = null;
    let isOver = false;
    const deeds: Record<string, number> = {};
    /** Suspends a worker, for longer than it may be silent at times. */
    const stop = (pid: number) => {
      deeds.stop = (deeds.stop ?? 0) + 1;
      sendSignal(pid, 'SIGSTOP');
      setTimeout(() => sendSignal(pid, 'SIGCONT'), random.float(MAX_CUT_MS));
    };
    const act = () => {
      const kind = random.pick([
        'manager',
        'ssh',
        'worker',
        'worker',
        'keeper',
        'watchdog',
        'command',
        'command',
        'cut',
      ]);
      deeds[kind as string] = (deeds[kind as string] ?? 0) + 1;
      if (kind === 'cut') return void random.pick(ways)?.cut(random.float(MAX_CUT_MS));
      if (kind === 'manager') return void manager?.kill('SIGKILL');
      const ours = treeOf(manager?.pid as number).filter((pid) => nameOf(pid) === 'ssh');
      const all = machines.flatMap((machine) => processesOf(machine));
      const victim = random.pick(all.filter((each) => each.kind === kind));
      const pid = kind === 'ssh' ? random.pick(ours) : victim?.pid;
      if (victim !== undefined && !mayBeKilled(victim, all)) return;
      if (pid === undefined) return;
      if (kind === 'worker' && random.float() < 0.5) return void stop(pid);
      sendSignal(pid, 'SIGKILL');
    };
    const mischief = (async () => {
      const end = performance.now() + MISCHIEF;
      while (!isOver && performance.now() < end) {
        await pause(random.float(2 * REST));
        if (!isOver) act();
      }
    })();
    let said = '';
    for (let code: number | null = null; code !== 0 && code !== 1; ) {
      manager = start([launcher, 'exp', 'run', '--on', NAMES.join(), '--gpus', 'all']);
      const ended = await finished(manager);
      said = `${ended.stdout.slice(-3_000)}${ended.stderr}`;
      ({ code } = ended);
      if (code !== null && ![0, 1, 69].includes(code)) throw new Error(`${code}: ${said}`);
    }
    isOver = true;
    await mischief;

    const json = async (script: string, path: string) => {
      const { stdout, stderr } = await finished(start([python, '-S', join(fixtures, script), path]));
      return stderr === '' ? JSON.parse(stdout) : Promise.reject(new Error(stderr));
    };
    const { tasks } = await json('outcomes.py', join(project, '.gpu-owner/queue.db'));
    const table = 'results_chaos';
    const [header, ...cells] = await json('rows.py', join(project, table, 'final_results.csv'));
    const rows: ResultRow[] = cells.map((row: string[]) => ({
      ...{ table, task: row[header.indexOf('task_id')], attempt: row[header.indexOf('attempt')] },
    }));
    const log = readTestimony(witness);
    const violations = [
      ...violationsIn(log, { givenBack: Number.POSITIVE_INFINITY }),
      ...violationsOfTables(log, tasks, rows),
    ];
    expect(violations, JSON.stringify(deeds)).toEqual([]);
    expect(tasks.length).toBe(TASKS);
    // Nothing that was started here lives on there.
    await until(() =>
      machines.every(({ directory }) => processesWith(`HOME=${directory}/home`).length === 0),
    );
    const starts = log.filter(({ kind }) => kind === 'start').length;
    const failed = tasks.filter(({ state }: { state: string }) => state === 'failed').length;
    expect(existsSync(join(project, table))).toBe(true);
    if (SOAK) console.log({ seed, starts, rows: rows.length, failed, deeds }, said.slice(-300));
  },
);
