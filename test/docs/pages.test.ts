// The files in docs/ that users copy. Commands and their output are run by test/docs/readme.test.ts.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { CONVENTIONS } from '../../lib/config/index.ts';
import { GPULock } from '../../lib/conventions/gpu-lock.ts';
import { GPUScheduler } from '../../lib/conventions/gpu-scheduler.ts';
import { PidFiles } from '../../lib/conventions/pid-files.ts';
import { SafeGPU } from '../../lib/conventions/safe-gpu.ts';
import { because } from '../support/doctor.ts';
import {
  finished,
  launcher,
  Machine,
  output,
  root,
  UNSHARE,
  until,
  whyNoNamespace,
} from '../support/machine.ts';
import { fence, section } from '../support/pages.ts';
import { childrenOf, signalLiving } from '../support/processes.ts';

const text = (page: string) => readFileSync(join(root, 'docs', page), 'utf8');
const pages = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'));

const has = (program: string) => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;

let machine: Machine;
let here: string;
let env: Record<string, string>;

beforeEach(() => {
  machine = new Machine(2);
  here = join(machine.directory, 'here');
  const bin = join(machine.directory, 'bin');
  mkdirSync(here);
  mkdirSync(bin);
  symlinkSync(launcher, join(bin, 'gpu-owner'));
  // A stand-in for a training: prints what it was given, and fails if another process has its GPU.
  const program = [
    '#!/bin/sh',
    'mkdir "$TAKEN/$CUDA_VISIBLE_DEVICES" || exit 9',
    'echo "$@"; [ -z "$PAUSE" ] || exec sleep "$PAUSE"; sleep 0.1',
    'rmdir "$TAKEN/$CUDA_VISIBLE_DEVICES"',
  ];
  writeFileSync(join(bin, 'python'), program.join('\n'), { mode: 0o755 });
  mkdirSync(join(machine.directory, 'taken'));
  env = { PATH: `${bin}:${process.env.PATH}`, TAKEN: join(machine.directory, 'taken') };
});
afterEach(() => machine.close());

test('the index has every page, below headings that have a few links each', () => {
  const index = text('README.md');
  for (const page of pages) if (page !== 'README.md') expect(index).toContain(`](${page})`);
  const rows = [...index.matchAll(/^\| (\*\*)?.*\]?\)?\s*\|$/gm)].map(([, heading]) => heading !== undefined);
  const counts = rows
    .map((isHeading, at) => (isHeading ? [...rows.slice(at + 1), true].indexOf(true) : null))
    .filter((count) => count !== null);
  expect(counts.length).toBeLessThanOrEqual(7);
  for (const count of counts) expect([2, 3, 4, 5, 6]).toContain(count);
});

test('every convention has its row in conventions.md', () => {
  const page = section('docs/conventions.md', '## Beside gpu-owner');
  const rows = [...page.matchAll(/^\| `([\w-]+)` \| /gm)].map(([, name]) => name);
  expect(rows).toEqual([...CONVENTIONS]);
});

test('conventions.md names each directory of a convention', () => {
  const elsewhere = '/elsewhere';
  vi.stubEnv('GPU_OWNER_CONVENTIONS_ROOT', elsewhere);
  const all = [new SafeGPU(), new GPULock(), new GPUScheduler(), new PidFiles()];
  const paths = all.flatMap((convention) => convention.directories());
  vi.unstubAllEnvs();
  const names = paths.map((path) =>
    path.slice(elsewhere.length).replace(`${process.cwd()}/`, '').replace(homedir(), '~'),
  );
  expect(names).toContain('.gpu_locks');
  expect(names).toContain('~/.gpu_locks');
  const said = text('conventions.md').match(/(?<=`)[~\w./-]+(?=`)/g) ?? [];
  const missing = names.filter((name) => !said.some((each) => each === name || each.startsWith(`${name}/`)));
  expect(missing).toEqual([]);
});

test('sh and bash can read what is shown for them', () => {
  const shown = pages.flatMap((page) =>
    [...text(page).matchAll(/^ *```(?:sh|bash)\n([\s\S]*?)\n *```/gm)].map(
      ([, body]) => [page, body as string] as const,
    ),
  );
  expect(shown.length).toBeGreaterThan(15);
  for (const [page, body] of shown) {
    const { stderr } = spawnSync('bash', ['-n'], { input: body, encoding: 'utf8' });
    expect([page, stderr]).toEqual([page, '']);
  }
});

describe('docs/where-it-runs.md', () => {
  test('has a script that claims by its first line', async () => {
    const script = join(here, 'train.py');
    const first = fence('where-it-runs.md', 'python', '<!-- first line of a script -->');
    writeFileSync(
      script,
      `${first}import os, sys\nprint(os.environ['CUDA_VISIBLE_DEVICES'][:4], *sys.argv[1:])\n`,
      {
        mode: 0o755,
      },
    );
    const run = await machine.run([script, '--seed', '1'], { env });
    expect(run).toEqual({ code: 0, signal: null, stdout: 'GPU- --seed 1\n', stderr: '' });
  });
});

describe('docs/jobs.md', () => {
  /** Runs a job that tells as the page shows, with programs in PATH that stand for those of a recipe. @returns what these got */
  const tell = async (after: string, change = (text: string) => text) => {
    const config = join(machine.directory, 'config');
    mkdirSync(join(config, 'gpu-owner'), { recursive: true });
    const text = change(fence('jobs.md', 'yaml', after));
    writeFileSync(join(config, 'gpu-owner/config.yaml'), text, { mode: 0o600 });
    const got = join(machine.directory, 'got');
    // mail reads a message; notify-send reads nothing.
    for (const [name, input] of Object.entries({ mail: '"$(cat)"', 'notify-send': '' })) {
      const script = `#!/bin/sh\nline=$(printf '%s|' ${name} "$@" ${input})\necho "$line" >> ${got}\n`;
      writeFileSync(join(machine.directory, 'bin', name), script, { mode: 0o755 });
    }
    const all = { ...env, XDG_CONFIG_HOME: config, LOGNAME: 'alice' };
    const job = ['submit', '--notify', '--name', 'train', '--', 'sh', '-c', 'seq 100; exit 3'];
    const submitted = await machine.run([launcher, ...job], { env: all });
    expect(submitted).toMatchObject({ code: 0, stderr: '' });
    await machine.run([launcher, 'wait', 'train'], { env: all });
    return () => (existsSync(got) ? readFileSync(got, 'utf8') : '');
  };
  const STARTED = /job 1 \(train\) started on [^,]+, GPU 0: sh -c 'seq 100; exit 3'/;
  const FAILED = /job 1 \(train\) failed with exit code 3 on \S+ after [^:]+: sh -c 'seq 100; exit 3'/;

  test('has a recipe that notifies by mail', async () => {
    const got = await tell('\nMail');
    // A job that ends at once may notify of its end before its start.
    await until(() => got().match(/\|\n(?=mail|$)/g)?.length === 2);
    expect(got()).toMatch(new RegExp(`^mail\\|-s\\|${STARTED.source}\\|alice\\|`, 'm'));
    const lines = Array.from({ length: 50 }, (_, i) => 51 + i).join('\n');
    expect(got()).toMatch(new RegExp(`^mail\\|-s\\|${FAILED.source}\\|alice\\|${lines}\\|\\n`, 'm'));
  });

  test.each([
    ['\nSlack', /^\/services\/T0000\/B0000\/XXXX$/],
    // As the template of ntfy has it, which others would escape.
    ['\n[ntfy]', /^\/a-topic-that-nobody-guesses\?tpl=1&m=\{\{\.text\}\}$/],
  ])('has a recipe that notifies a server, after %j', async (after, path) => {
    const requests: { url: string; text: string }[] = [];
    const server = createServer((request, response) => {
      let body = '';
      request.on('data', (chunk) => (body += chunk));
      request.on('end', () => {
        requests.push({ url: request.url ?? '', text: JSON.parse(body).text });
        response.end('ok');
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    try {
      const { port } = server.address() as AddressInfo;
      await tell(after, (text) => text.replace(/https:\/\/[^/]+/, `http://127.0.0.1:${port}`));
      await until(() => requests.length === 2);
      for (const { url } of requests) expect(url).toMatch(path);
      expect(requests.map(({ text }) => text).sort()).toEqual([
        expect.stringMatching(FAILED),
        expect.stringMatching(STARTED),
      ]);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
});

describe('docs/recipes.md', () => {
  test.skipIf(!has('make'))(
    'has a Makefile that runs as many jobs as there are GPUs, and keeps no results of failed ones',
    async () => {
      writeFileSync(join(here, 'Makefile'), fence('recipes.md', 'make'));
      writeFileSync(join(here, 'train.py'), '');
      // So that no job warns of one that decides for more than 2 s, as on a busy machine.
      const configuration = join(machine.directory, 'machine.yaml');
      writeFileSync(configuration, 'lockTimeout: 1m\n', { mode: 0o644 });
      const patient = { ...env, GPU_OWNER_MACHINE_CONFIG: configuration };
      const { code, stderr } = await machine.run(['make', '-s', '-j', '6'], { env: patient, cwd: here });
      expect([code, stderr.replace(/^gpu-owner: waiting.*\n( {2}.*\n)*/gm, '')]).toEqual([0, '']);
      const results = readdirSync(join(here, 'results')).sort();
      expect(results).toEqual([1, 2, 3, 4, 5, 6].map((seed) => `${seed}.csv`));
      expect(readFileSync(join(here, 'results/3.csv'), 'utf8')).toBe('train.py --seed 3\n');
    },
  );

  test('has a loop that ends, and by Ctrl-C with all that it has started', async () => {
    // A bash that no shell has started takes a socket as its input for a login, and reads ~/.bashrc.
    const bash = ['bash', '--norc', '-c'];
    const loop = fence('recipes.md', 'bash');
    expect((await machine.run([...bash, loop], { env, cwd: here })).code).toBe(0);
    expect(readFileSync(join(here, '6.log'), 'utf8')).toMatch(/train\.py --seed 6\n$/);
    const child = machine.start([...bash, loop], { env: { ...env, PAUSE: '30' }, cwd: here });
    const end = finished(child);
    await until(async () => (await machine.states()).every((state) => state === 'leased'));
    child.kill('SIGINT');
    await end;
    await until(async () => (await machine.states()).every((state) => state === 'free'));
  });

  // The one of moreutils has the same name.
  const hasParallel = spawnSync('parallel', ['--version'], { encoding: 'utf8' }).stdout?.includes('GNU');
  test.skipIf(!hasParallel)(
    `has a command for GNU parallel that runs all jobs${hasParallel ? '' : ' (skipped: not installed)'}`,
    async () => {
      const { code, stdout } = await machine.run(
        ['bash', '-c', fence('recipes.md', 'sh', '## GNU parallel')],
        {
          env,
          cwd: here,
        },
      );
      expect([code, stdout.trim().split('\n').length]).toEqual([0, 6]);
    },
  );
});

const noNamespace = whyNoNamespace();

describe.skipIf(noNamespace !== null)(
  `docs/where-it-runs.md: gpu-owner as the first process of a container${because(noNamespace)}`,
  () => {
    const start = (script: string) =>
      machine.start([...UNSHARE, 'gpu-owner', 'run', '--', 'sh', '-c', script], { env });

    test('the container ends with the command, and takes what is left with it', async () => {
      expect((await finished(start('sleep 600 & exit 3'))).code).toBe(3);
      await until(async () => (await machine.states()).every((state) => state === 'free'));
    });

    test('signals reach the command', async () => {
      const child = start('trap "exit 5" TERM; echo ready; while :; do sleep 0.1; done');
      const end = finished(child);
      await output(child, /ready/);
      const [first] = childrenOf(child.pid as number);
      signalLiving(first, 'SIGTERM');
      expect((await end).code).toBe(5);
    });
  },
);
