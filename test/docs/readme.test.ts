// README.md and docs/ show what happens, and a fresh clone can do what README.md says. A fence is run if a comment above it
// says so:
//
//   <!-- runs on MACHINE [in PROJECT] [while: COMMAND[; COMMAND…]] -->
//   <!-- in PROJECT: PATH -->
//
// The second is a file, which fences of the page that run in this project find there. These share a directory and a machine.
// MACHINE is a simulated one, new for each fence. The commands behind `while:` go on in the background meanwhile, each started
// when the one before has made a GPU unavailable. In ```console, lines with `$ ` are commands and the others their output, where
// `…` stands for anything, and a line of it for any lines. ```js is a module, ```python a program; they must end with exit code 0.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Activity, activityIn } from '../support/activity.ts';
import { whyUnchanged } from '../support/changes.ts';
import { everything, type Fence, fences, texts } from '../support/pages.ts';
import { until } from '../support/simulated.ts';

const root = join(import.meta.dirname, '../..');
const command = join(root, 'bin/gpu-owner.cjs');
const readme = texts.get('README.md') as string;

function firstFence(heading: string): string | undefined {
  const start = readme.indexOf(`\n## ${heading}\n`);
  if (start < 0) return undefined;
  const section = readme.slice(start + 1).split(/\n## /)[0] as string;
  return /```\w*\n([\s\S]*?)\n```/.exec(section)?.[1];
}

// Everything below happens here: simulated machines, a `gpu-owner` in PATH, and what stands for the user's programs.
let home = '';
let variables: NodeJS.ProcessEnv = {};

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'gpu-owner-docs-'));
  chmodSync(home, 0o755);
  const bin = join(home, 'bin');
  mkdirSync(bin);
  symlinkSync(command, join(bin, 'gpu-owner'));
  for (const program of ['python', 'torchrun']) {
    writeFileSync(join(bin, program), '#!/bin/sh\nexit 0\n', { mode: 0o755 });
  }
  mkdirSync(join(home, 'node_modules'));
  symlinkSync(root, join(home, 'node_modules/gpu-owner'));
  const { CUDA_VISIBLE_DEVICES: _, CUDA_DEVICE_ORDER: __, GPU_OWNER_LOCK_DIR: ___, ...env } = process.env;
  variables = {
    ...env,
    PATH: `${bin}:${env.PATH}`,
    HOME: home,
    XDG_CONFIG_HOME: join(home, 'config'),
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
    COLUMNS: '80',
    PYTHONPATH: join(root, 'python'),
  };
});

afterAll(() => rmSync(home, { recursive: true, force: true }));

let machines = 0;

/** The environment of a new machine. */
function machine(name: string): NodeJS.ProcessEnv {
  machines++;
  return {
    ...variables,
    GPU_OWNER_SIMULATE: name,
    GPU_OWNER_SIMULATE_DIR: join(home, `machine-${machines}`),
    XDG_STATE_HOME: join(home, `state-${machines}`),
  };
}

/** Whether a program has used this machine: no GPU of another one is held. */
const isUsed = (env: NodeJS.ProcessEnv) => existsSync(env.GPU_OWNER_SIMULATE_DIR as string);

function taken(env: NodeJS.ProcessEnv): number {
  if (!isUsed(env)) return 0;
  const { stdout, stderr } = spawnSync(command, ['status', '--json'], {
    env,
    encoding: 'utf8',
    timeout: 60_000,
  });
  if (stdout === '') throw new Error(stderr);
  // A GPU that is divided by MIG is never free.
  const gpus = JSON.parse(stdout) as { state: string; migEnabled: boolean | null }[];
  return gpus.filter(({ state, migEnabled }) => state !== 'free' && migEnabled !== true).length;
}

function activity(env: NodeJS.ProcessEnv): Activity {
  const { GPU_OWNER_SIMULATE_DIR = '', GPU_OWNER_SIMULATE = '' } = env;
  return activityIn(join(GPU_OWNER_SIMULATE_DIR, GPU_OWNER_SIMULATE, 'locks'));
}

/** Something that takes a GPU, or waits for one. */
async function inBackground(line: string, env: NodeJS.ProcessEnv): Promise<ChildProcess> {
  const [program = '', ...args] = line.split(' ');
  const [before, queued] = [taken(env), activity(env).waiting.length];
  const child = spawn(program, args, { env, stdio: ['pipe', 'ignore', 'ignore'] });
  await until(() => activity(env).waiting.length > queued || taken(env) > before);
  return child;
}

/** By the end of its input if that will do, as processes of its own may hang on it. */
async function end(child: ChildProcess): Promise<void> {
  const ended = new Promise((resolve) => child.once('exit', resolve));
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.stdin?.end();
  const timer = setTimeout(() => child.kill('SIGTERM'), 500);
  await ended;
  clearTimeout(timer);
}

interface Project {
  directory: string;
  env: NodeJS.ProcessEnv;
  /** Lines of the fences whose files have been written. */
  files: Set<number>;
}

const projects = new Map<string, Project>();

/** Where a fence runs: with the files that its page has shown before. */
function projectOf({ page, line, runs }: Fence): Project {
  const { machine: name = '', project = null } = runs ?? {};
  const key = `${page} ${project}`;
  const known = projects.get(key);
  const here = (project !== null && known) || {
    directory: mkdtempSync(join(home, 'here-')),
    env: machine(name),
    files: new Set<number>(),
  };
  projects.set(key, here);
  for (const { page: other, line: where, file, body } of fences) {
    if (file === null || other !== page || file.project !== project || where > line) continue;
    const path = join(here.directory, file.path);
    if (here.files.has(where)) continue; // commands may have changed it since
    here.files.add(where);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, `${body}\n`);
  }
  return here;
}

const MARK = '\u0001';

/** The output of each command of a console fence, in the order of the commands. */
function runConsole(body: string, directory: string, env: NodeJS.ProcessEnv): string {
  const script = ['mark() { local code=$?; echo "\u0001"; return $code; }'];
  for (const line of body.split('\n')) if (line.startsWith('$ ')) script.push('mark', line.slice(2));
  const { stdout, error } = spawnSync('bash', ['-c', `exec 2>&1\n${script.join('\n')}`], {
    cwd: directory,
    env,
    encoding: 'utf8',
    timeout: 60_000,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  if (error) throw error;
  const outputs = stdout.split(`${MARK}\n`).slice(1);
  let next = 0;
  return body
    .split('\n')
    .filter((line) => line.startsWith('$ '))
    .map((line) => `${line}\n${outputs[next++] ?? ''}`)
    .join('');
}

function patternOf(body: string): RegExp {
  const lines = body.split('\n').map((line) => {
    if (line === '…') return '(?:.*\\n)*?';
    const literal = line.split('…').map((part) => part.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'));
    return `${literal.join('.*')}\\n`;
  });
  return new RegExp(`^${lines.join('')}$`);
}

/** The pages for the first day. What the others show runs when they change, and in `npm run test:soak`. */
const FIRST_PAGES = [
  'README.md',
  ...['first-steps', 'claims', 'jobs', 'sweeps'].map((name) => `docs/${name}.md`),
];

describe('what is shown is what happens', () => {
  const all = fences.filter(({ runs }) => runs !== null);
  const pages = new Set(all.map(({ page }) => page));
  const isAsked = (page: string) => FIRST_PAGES.includes(page) || whyUnchanged([page]) === null;
  const asked = new Set([...pages].filter(isAsked));
  const shown = all.filter(({ page }) => asked.has(page));
  test.each(shown.map((fence) => [`${fence.page}:${fence.line}`, fence] as const))('%s', async (_, fence) => {
    const { runs, language, body } = fence;
    const { directory, env } = projectOf(fence);
    const meanwhile: ChildProcess[] = [];
    try {
      for (const line of runs?.meanwhile ?? []) meanwhile.push(await inBackground(line, env));
      if (language === 'js') {
        const path = join(home, `${fence.page.replace(/\W/g, '-')}-${fence.line}.mjs`);
        writeFileSync(path, body);
        const run = spawnSync(process.execPath, [path], { env, encoding: 'utf8', timeout: 60_000 });
        expect(run.stderr + (run.status ?? run.signal)).toBe('0');
      } else if (language === 'python') {
        const run = spawnSync('python3', ['-'], {
          env,
          input: body,
          encoding: 'utf8',
          timeout: 60_000,
        });
        expect(run.stderr + (run.status ?? run.signal)).toBe('0');
      } else {
        expect(language).toBe('console');
        const output = runConsole(body, directory, env);
        // A string that differs shows where; the pattern alone would only say no.
        expect(patternOf(body).test(output) ? body : output).toBe(body);
      }
    } finally {
      for (const child of meanwhile) await end(child);
    }
    expect(activity(env).leases).toEqual([]);
  });

  test('enough pages show a command', () => {
    const ran = (page: string) => all.filter((fence) => fence.page === page).length;
    expect(ran('README.md')).toBeGreaterThanOrEqual(4);
    for (const page of [
      'docs/claims.md',
      'docs/first-steps.md',
      'docs/sharing.md',
      'docs/nodejs.md',
      'docs/python.md',
      'docs/results.md',
      'docs/search.md',
      'docs/simulator.md',
      'docs/sweeps.md',
    ]) {
      expect(ran(page), page).toBeGreaterThan(0);
    }
  });
});

describe('a fresh clone', () => {
  test('runs “Try it” in one line, whose second half shows the main job', () => {
    const line = firstFence('Try it') ?? '';
    expect(line).toMatch(/^npm ci && node \S+$/);
    const [, script = ''] = /node (\S+)$/.exec(line) ?? [];
    const env = { ...variables, GPU_OWNER_LOCK_DIR: '/nonexistent/one', CUDA_VISIBLE_DEVICES: '7' };
    const { status, stdout } = spawnSync(process.execPath, [script], {
      cwd: root,
      env,
      encoding: 'utf8',
      timeout: 60_000,
    });
    expect(stdout).not.toContain('NOT TRUE');
    expect(stdout.match(/^worker \d runs on GPU \d/gm)).toHaveLength(5); // four, and one after the kill
    expect(new Set(stdout.match(/(?<=^worker \d runs on )GPU \d(?= \(pid)/gm))).toHaveLength(4);
    expect(
      stdout.match(/^worker \d ended with exit code 75: gpu-owner: 1 GPU asked for, none is free/gm),
    ).toHaveLength(2);
    expect(stdout.match(/^ok: /gm)).toHaveLength(5);
    expect(status).toBe(0);
  });

  test('runs the tests by the line that .ci/run calls', () => {
    expect(firstFence('Run the tests')).toBe('npm ci && npm test');
    const path = join(root, '.ci/run');
    expect(existsSync(path), '.ci/run is missing').toBe(true);
    expect(statSync(path).mode & 0o111, '.ci/run is not executable').not.toBe(0);
    // .ci/run takes the commands from here, so that there is one truth.
    const [, program = ''] = /awk '([^']*)' README\.md/.exec(readFileSync(path, 'utf8')) ?? [];
    const { stdout } = spawnSync('awk', [program, 'README.md'], { cwd: root, encoding: 'utf8' });
    expect(stdout).toBe('npm ci && npm test\n');
  });

  test('has the commands that the package promises', () => {
    const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    for (const [, name] of everything.matchAll(/\bnpm run ([\w:-]+)/g))
      expect(Object.keys(scripts)).toContain(name);
  });

  test('has examples/claim.py, which claims a GPU and gives it back', () => {
    const env = machine('2');
    const run = spawnSync('python3', [join(root, 'examples/claim.py')], {
      env,
      encoding: 'utf8',
      timeout: 60_000,
    });
    expect(run.stderr).toBe('');
    expect(run.stdout).toMatch(
      /^this process owns GPU 0 \(Simulated GPU\); to CUDA it is cuda:0\nCUDA_VISIBLE_DEVICES=GPU-.*\n$/,
    );
    expect(run.status).toBe(0);
    expect(taken(env)).toBe(0);
  });

  test('has a command that works by a link in another directory', () => {
    const { stdout } = spawnSync('gpu-owner', ['--version'], { env: variables, cwd: '/', encoding: 'utf8' });
    expect(stdout.split('\n')[0]).toBe(JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version);
  });
});
