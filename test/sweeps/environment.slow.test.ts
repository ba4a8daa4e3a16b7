import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Experiment } from '../support/experiment.ts';
import { command, python } from '../support/machine.ts';
import { noRedis, RedisServer } from '../support/redis-server.ts';

/** Tests what commands meet before they begin, and what they hand on. */

let experiment: Experiment;
beforeEach(() => {
  experiment = new Experiment(1);
});
afterEach(() => experiment.close());

const COMMANDS: readonly (readonly string[])[] = [
  ['run', '--gpus', '1', '--grid', 'n=1', '--', 'true'],
  ['worker'],
  ['status'],
];

test('in a directory that was removed, commands say so', async () => {
  const script = `d=$1; shift; mkdir "$d"; cd "$d"; rmdir "$d"; exec "$@"`;
  for (const [at, args] of COMMANDS.entries()) {
    const gone = join(experiment.machine.directory, `gone${at}`);
    const words = ['sh', '-c', script, 'sh', gone, process.execPath, command, 'exp', ...args];
    const { code, stderr } = await experiment.machine.run(words);
    expect(stderr).toMatch(/^gpu-owner: the current directory was removed: .*--project.*\n$/);
    expect(code).toBe(64);
  }
});

test("a project's path that isn't UTF-8 is told with what to do", async () => {
  const script = `import os, sys
path = os.fsencode(sys.argv[1]) + b'/caf\\xe9'
os.mkdir(path); os.chdir(path)
os.execv(sys.argv[2], sys.argv[2:])`;
  const { code, stderr } = await experiment.machine.run([
    ...[python, '-c', script, experiment.machine.directory],
    ...[process.execPath, command, 'exp', 'run', '--gpus', '1', '--grid', 'n=1', '--', 'true'],
  ]);
  expect(stderr).toMatch(
    /project directory .*caf\ufffd can't be used, because its path isn't UTF-8: give it another/,
  );
  expect(code).toBe(64);
});

describe.skipIf(noRedis !== null)(`with a queue on Redis${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await RedisServer.start({ password: 's3cret' });
  });
  afterEach(() => server.remove());

  test('tasks get no password, however it was given', async () => {
    const url = server.url('project=lab');
    const train = ['--', 'env'];
    const given = [
      { GPU_OWNER_QUEUE: url },
      { GPU_OWNER_QUEUE: url.replace(/\/\/.*@/, '//'), GPU_OWNER_QUEUE_PASSWORD: 's3cret' },
    ];
    for (const [at, env] of given.entries()) {
      const args = ['run', '--gpus', '1', '--grid', `n=${at}`, '--output-dir', `results${at}`, ...train];
      const { code, stdout, stderr } = await experiment.run(args, { env });
      expect({ code, stderr }, stdout).toEqual({ code: 0, stderr: '' });
      const [name] = readdirSync(join(experiment.project, `results${at}`)).filter((each) =>
        /\.log$/.test(each),
      );
      const log = readFileSync(join(experiment.project, `results${at}`, name as string), 'utf8');
      expect(log).toMatch(/^GPU_OWNER_QUEUE=redis:\/\/127\.0\.0\.1:\d+\/0\?project=lab$/m);
      expect(log).not.toContain('s3cret');
    }
  });

  test('where a log is, as the queue says, is told without what plays tricks', async () => {
    const env = { GPU_OWNER_QUEUE: server.url('project=lab') };
    const { code } = await experiment.run(['run', '--gpus', '1', '--grid', 'n=1', '--', 'true'], { env });
    expect(code).toBe(0);
    const key = server.command('--scan', '--pattern', '*:t-*[^s]').trim();
    const places = server.command('--scan', '--pattern', 'gpu-owner-tasks:*:logs').trim();
    const logs = async () => (await experiment.run(['logs', 'grid_0'], { env })).stdout;
    const worker = JSON.parse(server.command('HGET', key, 'pb'));
    const host = (name: string) =>
      server.command('HSET', key, 'pb', JSON.stringify({ ...worker, host: name }));
    const log = (path: string) =>
      server.command('HSET', places, worker.token, JSON.stringify({ path, from: 0, to: 9 }));

    const secret = join(experiment.machine.directory, 'secret');
    writeFileSync(secret, 'a secret\n');
    log(secret);
    expect(await logs()).toMatch(
      /its output is in .*secret on .*, which can't be read here: it is no log of this project/,
    );
    host('-oProxyCommand=touch x');
    expect(await logs()).toMatch(/not on this machine\n$/);
    host('far');
    log('/x\u001b]0;title\u0007y');
    expect(await logs()).toMatch(/its output is in \/xy on far, not on this machine\n$/);
  });
});
