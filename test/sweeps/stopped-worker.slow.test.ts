// A worker on Redis whose Node.js alone is stopped: its commands end before others start their tasks.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { command, finished, Machine, output, python, until } from '../support/machine.ts';
import { signalLiving } from '../support/processes.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';

/**
 * Ignores SIGTERM, as does its child in a session of its own that no parent knows; ends once `go-HOST` is there. A lock lasts
 * while one of these processes lives, so another start sees them.
 */
const STUBBORN = `
import fcntl, os, signal, sys, time
directory, task = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def say(what):
    log = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{what} {task}\\n".encode())
    os.close(log)
lock = open(os.path.join(directory, f"lock-{task}"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("double")
    sys.exit(3)
say("start")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
while not os.path.exists(os.path.join(directory, f"go-{os.uname().nodename}")):
    time.sleep(0.01)
`;

describe.skipIf(noRedis !== null)(`a stopped worker${noRedis === null ? '' : ` (${noRedis})`}`, () => {
  let server: RedisServer;
  let machines: Machine[];
  beforeEach(async () => {
    server = await RedisServer.start();
    machines = [1, 2, 3].map(() => new Machine(2));
    for (const { directory } of machines) mkdirSync(join(directory, 'train'));
    writeFileSync(join(directory(), 'stubborn.py'), STUBBORN);
  });
  afterEach(async () => {
    for (const machine of machines) await machine.close();
    await server.remove();
  });

  const directory = () => (machines[0] as Machine).directory;
  const log = () => {
    try {
      return readFileSync(join(directory(), 'log'), 'utf8').trim().split('\n').sort();
    } catch {
      return [];
    }
  };
  /** A command on a host of its own. */
  function start(host: number, ...args: string[]) {
    const machine = machines[host] as Machine;
    const words = ['unshare', '--uts', 'sh', '-c', `hostname host${host} && exec "$@"`, 'sh'];
    return machine.start([...words, process.execPath, command, 'exp', ...args], {
      cwd: join(machine.directory, 'train'),
      env: { GPU_OWNER_QUEUE: server.url('patience=4&margin=3') },
    });
  }

  test('its commands and all that they have started end before others start its tasks', async () => {
    const words = [python, join(directory(), 'stubborn.py'), directory(), '{x}'];
    const manager = start(0, 'manager', '--no-listen', '--grid', 'x=1..4', '--', ...words);
    const managed = finished(manager);
    await output(manager, /Marked 0 tasks/);
    const stopped = start(1, 'worker', '--gpus', 'all');
    const end = finished(stopped);
    await until(() => log().length === 2);
    signalLiving(stopped.pid as number, 'SIGSTOP');
    (machines[0] as Machine).touch('go-host2');
    const other = await finished(start(2, 'worker', '--gpus', 'all'));
    expect(other, other.stderr).toMatchObject({ code: 0 });
    expect(await managed).toMatchObject({ code: 0 });
    const once = ['start 1', 'start 2', 'start 3', 'start 4'];
    expect(log()).toEqual([...once, 'start 1', 'start 2'].sort());

    // The worker has the GPUs still, and nothing runs on them.
    signalLiving(stopped.pid as number, 'SIGCONT');
    expect(await end).toMatchObject({ code: 0 });
    expect(log()).toHaveLength(6);
    const rows = readFileSync(join(directory(), 'train/results_grid/final_results.csv'), 'utf8');
    expect(rows.trim().split('\n')).toHaveLength(5);
  });
});
