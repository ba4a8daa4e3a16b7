// Names in README.md and docs/ are those that exist: options, exit codes, findings, checks, variables, keys, members, links, files.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checksThatNeed } from '../../lib/check/checks.ts';
import { CATALOGUE } from '../../lib/check/finding.ts';
import { loadConfiguration } from '../../lib/config/configuration.ts';
import { CRITERIA_KEYS } from '../../lib/config/criteria.ts';
import { ErrorCode, EXIT_CODES } from '../../lib/errors.ts';
import { HOST_ERRORS } from '../../lib/fleet/host-failure.ts';
import { GPUOwner } from '../../lib/index.ts';
import { STATES } from '../../lib/sweeps/queue/queue.ts';
import { launcher, Machine, root } from '../support/machine.ts';
import { everything, fences, pages, section, texts } from '../support/pages.ts';

let machine: Machine;
beforeAll(() => {
  machine = new Machine(1);
});
afterAll(() => machine.close());

function run(args: string[], cwd: string = root): string {
  const env = { ...machine.env, COLUMNS: '80' };
  return spawnSync(launcher, args, { env, cwd, encoding: 'utf8' }).stdout;
}

/** The headings of a page, as links name them. */
function anchorsOf(text: string): string[] {
  return [...text.matchAll(/^#+ (.+)$/gm)].map(([, heading]) =>
    (heading as string)
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replace(/ /g, '-'),
  );
}

/** The names in the first column of tables, outside parentheses. */
function namesIn(text: string): string[] {
  return [...text.matchAll(/^\| (`.*?) \|/gm)].flatMap(([, cell]) =>
    [...(cell as string).replace(/\(.*?\)/g, '').matchAll(/`(\w+)`/g)].map(([, name]) => name as string),
  );
}

const EXPERIMENTS = [
  'run',
  'worker',
  'manager',
  'status',
  'retry',
  'cancel',
  'pause',
  'resume',
  'logs',
  'export',
].map((name) => `exp ${name}`);

const JOBS = ['submit', 'jobs', 'logs', 'wait', 'cancel', 'resubmit'];

const helps = new Map<string, string>();
beforeAll(async () => {
  const names = [
    'run',
    'hold',
    'status',
    'find',
    'doctor',
    'selftest',
    'simulate',
    'metrics',
    'report',
    'top',
    'web',
    'book',
    'bookings',
    'enforce',
    ...JOBS,
    ...EXPERIMENTS,
  ];
  const pages = await machine.runCommands(names.map((name) => [...name.split(' '), '--help', '--all']));
  for (const [at, { stdout }] of pages.entries()) helps.set(names[at] as string, stdout);
});
const optionsIn = (text: string) => new Set(text.match(/(?<![\w-])--[a-z][a-z_-]*/g) ?? []);

test('options in commands exist in the help of the command', () => {
  const lines = [
    ...everything.matchAll(
      /\bgpu-owner (run|hold|status|find|top|web|book|bookings|enforce|doctor|selftest|simulate|exp [a-z]+)\b([^\n`|;#]*)/g,
    ),
  ];
  expect(lines.length).toBeGreaterThan(20);
  for (const [line, name = '', rest = ''] of lines) {
    const own = rest.split(/ -- /)[0] as string;
    expect([...helps.keys()], line).toContain(name);
    const known = new Set([...optionsIn(helps.get(name) ?? ''), '--all']);
    for (const option of optionsIn(own)) expect(known, line).toContain(option);
  }
});

test('options in the text exist in some help', () => {
  const known = optionsIn([...helps.values()].join('\n'));
  // Options of other programs, or of the example.
  const foreign = new Set([
    ...['--real', '--compute-mode', '--gpu-reset', '--gres', '--pid', '--init'],
    ...['--joblog', '--resume-failed', '--halt', '--signal', '--requeue'],
    ...['--device', '--nv', '--no-capture-output'],
    ...['--nproc-per-node', '--standalone', '--docker', '--gpu_ids', '--main_process_port', '--multi_gpu'],
    ...['--num_processes', '--gpu-memory-utilization'],
    ...['--num-gpus', '--memory-threshold-gb', '--power-threshold-w', '--utilization-threshold-percent'],
    ...['--poll-interval', '--max-wait-time', '--ignore-scripts'],
    ...['--nb-gpus', '--backend', '--permission', '--allow-addons'],
    ...['--query-gpu', '--query-compute-apps', '--query-retired-pages', '--query-remapped-rows'],
    ...['--query-supported-clocks', '--help-query-gpu', '--format'],
  ]);
  for (const [span] of everything.matchAll(/`--[a-z][^`\n]*`/g)) {
    for (const option of optionsIn(span)) if (!foreign.has(option)) expect(known, span).toContain(option);
  }
});

test('exit codes are those of the command', () => {
  const rows = [...section('docs/troubleshooting.md', '## Exit codes').matchAll(/^\| (\d+) \| (.*?) \|/gm)];
  const table = Object.fromEntries(
    rows.flatMap(([, code, codes]) =>
      [...(codes as string).matchAll(/`(ERR_\w+)`/g)].map(([, name]) => [name, Number(code)]),
    ),
  );
  expect(table).toEqual(EXIT_CODES);
});

test('docs/troubleshooting.md has a section for each error code, and no other', () => {
  const headings = [...(texts.get('docs/troubleshooting.md') as string).matchAll(/^## (ERR_\w+)$/gm)];
  expect(headings.map(([, code]) => code).sort()).toEqual(Object.keys(ErrorCode).sort());
});

test('error codes in the text exist', () => {
  for (const [code] of everything.matchAll(/\bERR_[A-Z_]+\b/g))
    expect([...Object.keys(ErrorCode), ...HOST_ERRORS]).toContain(code);
});

test('environment variables that are read or given are explained, and no others', () => {
  const pattern =
    '(env[.]|getenv\\("|environ.get\\("|[$][{]|(INHERITED|EXTRA_CERTIFICATES) = .|(WAITING|REQUEUED|ROLE) = .|_MARK = .)GPU_OWNER_[A-Z_]+|(^ +|{ )GPU_OWNER_[A-Z_]+:';
  const places = ['lib', 'bin', 'native', 'simulator', 'python', '--exclude-dir=tests'];
  const sources = spawnSync('grep', ['-rhoE', '--exclude-dir=__pycache__', pattern, ...places], {
    cwd: root,
    encoding: 'utf8',
  }).stdout;
  const read = new Set(sources.match(/GPU_OWNER_[A-Z_]+/g));
  const contributing = readFileSync(join(root, 'CONTRIBUTING.md'), 'utf8')
    .match(/^\| `GPU_OWNER_.*/gm)
    ?.join();
  const explained = new Set(`${everything}${contributing}`.match(/\bGPU_OWNER_[A-Z]+(_[A-Z]+)*\b/g));
  expect([...explained].sort()).toEqual([...read].sort());
});

test('keys of configuration files are those that are read', () => {
  const documented = namesIn(section('docs/administrators.md', '## The configuration file'));
  const path = join(machine.directory, 'gpu-owner/config.yaml');
  mkdirSync(dirname(path));
  writeFileSync(path, 'zzzzzzzzzzzzzzzz: 1\n');
  // Some are for the machine's file only, and some for the user's.
  const known = [
    { GPU_OWNER_MACHINE_CONFIG: path, XDG_CONFIG_HOME: '/nonexistent' },
    { GPU_OWNER_MACHINE_CONFIG: '/dev/null', XDG_CONFIG_HOME: machine.directory },
  ].flatMap((env) => {
    try {
      loadConfiguration(env);
    } catch (error) {
      return /the known ones are (.*)$/.exec((error as Error).message)?.[1]?.split(/, | and /) ?? [];
    }
    return [];
  });
  expect(documented.sort()).toEqual([...new Set(known)].sort());
});

test('options of docs/nodejs.md are those of the library', async () => {
  const documented = namesIn(section('docs/nodejs.md', '## Options'));
  const error = await GPUOwner.acquire({ zzzzzzzzzzzzzzzz: 1 } as object).catch((each: Error) => each);
  const known = /the known ones are (.*)$/.exec((error as Error).message)?.[1]?.split(/, | and /);
  expect(known).toEqual(expect.arrayContaining([...CRITERIA_KEYS]));
  expect(documented.sort()).toEqual(known?.sort());
});

test('docs/python.md has each criterion', () => {
  const words = section('docs/python.md', '## Choose GPUs').match(/\w+/g);
  const parameters = CRITERIA_KEYS.map((key) =>
    key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
  );
  expect(parameters).toContain('min_free_memory');
  expect(parameters.filter((name) => !words?.includes(name))).toEqual([]);
});

test('examples/config.yaml has each criterion that a file may have, and keys that are read', () => {
  const text = readFileSync(join(root, 'examples/config.yaml'), 'utf8').replace(/^#(?=\w+:)/gm, '');
  const keys = [...text.matchAll(/^(\w+):/gm)].map(([, key]) => key);
  // That is for a call to decide.
  const criteria = CRITERIA_KEYS.filter((key) => key !== 'force');
  expect(criteria.filter((key) => !keys.includes(key))).toEqual([]);
  const path = join(machine.directory, 'example.yaml');
  writeFileSync(path, text, { mode: 0o600 });
  const load = () => loadConfiguration({ GPU_OWNER_MACHINE_CONFIG: path, XDG_CONFIG_HOME: '/nonexistent' });
  expect(load).not.toThrow();
});

test('keys of simulate set are those in docs/simulator.md', () => {
  const groups = (helps.get('simulate') as string).split('\n\n').filter((group) => /^Keys /.test(group));
  const known = groups.flatMap((group) => [...group.matchAll(/^ {2}([a-z-]+)=/gm)].map(([, key]) => key));
  expect(known).toContain('lost');
  const table = section('docs/simulator.md', '## Faults').match(/^\| .*? \|/gm) ?? [];
  const documented = table.flatMap((cell) => [...cell.matchAll(/`([a-z-]+)=/g)].map(([, key]) => key));
  expect(documented.sort()).toEqual(known.sort());
});

test('examples of configuration files are valid', () => {
  const examples = fences.filter(
    ({ language, file, body }) => language === 'yaml' && file === null && !/^(?:steps|program):/m.test(body),
  );
  expect(examples.length).toBeGreaterThan(1);
  for (const { page, line, body } of examples) {
    const path = join(machine.directory, 'example/gpu-owner/config.yaml');
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, body, { mode: 0o600 });
    const isOfUser = body.includes('notifyWebhook');
    const load = () =>
      loadConfiguration({
        GPU_OWNER_MACHINE_CONFIG: isOfUser ? '/dev/null' : path,
        XDG_CONFIG_HOME: isOfUser ? join(machine.directory, 'example') : '/nonexistent',
      });
    expect(load, `${page}:${line}`).not.toThrow();
  }
});

test('members of exp status --json are those in docs/sweeps.md', () => {
  const cwd = mkdtempSync(join(machine.directory, 'here-'));
  run(['exp', 'run', '--gpus', '1', '--grid', 'a=1', '--', 'true'], cwd);
  const status = JSON.parse(run(['exp', 'status', '--json'], cwd));
  const documented = namesIn(section('docs/sweeps.md', '### The JSON of exp status'));
  expect(documented.sort()).toEqual(Object.keys(status).sort());
  expect(Object.keys(status.counts).sort()).toEqual([...STATES].sort());
});

const tracked = spawnSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: root,
  encoding: 'utf8',
})
  .stdout.split('\n')
  .filter((path) => path !== '' && existsSync(join(root, path)));

test('docs/doctor.md explains each finding, with the level that it has, and no other', () => {
  const page = texts.get('docs/doctor.md') as string;
  const rows = [...page.matchAll(/^\| `([a-z-]+)` \| (note|warning|problem) \| (.+?) \|$/gm)];
  const documented = rows.map(([, id, level]) => `${id} ${level}`);
  const [sentence = ''] = /^Findings of the level `ok`[^.]*\./m.exec(page) ?? [];
  for (const [, id] of sentence.matchAll(/`([a-z-]{3,})`/g)) documented.push(`${id} ok`);
  expect(documented.sort()).toEqual(
    Object.entries(CATALOGUE)
      .map(([id, level]) => `${id} ${level}`)
      .sort(),
  );
});

test('docs/doctor.md explains each check of selftest, in the order of the report, and no other', () => {
  const page = section('docs/doctor.md', '### The checks');
  const rows = [...page.matchAll(/^\| `([a-z-]+)` \| (.+?) \|$/gm)].map(([, name]) => name);
  expect(rows).toEqual(checksThatNeed('claim', 'gpu'));
});

test('links lead somewhere', () => {
  const documents = new Map(
    tracked
      .filter((path) => path.endsWith('.md'))
      .map((path) => [path, readFileSync(join(root, path), 'utf8').replace(/^ *```[\s\S]*?\n *```$/gm, '')]),
  );
  expect(documents.size).toBeGreaterThan(pages.length);
  for (const [page, prose] of documents) {
    for (const [link, target = ''] of prose.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(target)) continue;
      const [path = '', anchor] = target.split('#');
      const file = path === '' ? page : relative(root, join(root, dirname(page), path));
      expect(existsSync(join(root, file)), `${page}: ${link}`).toBe(true);
      if (anchor !== undefined)
        expect(anchorsOf(documents.get(file) ?? ''), `${page}: ${link}`).toContain(anchor);
    }
  }
});

test('pages that sources, examples and messages name exist', () => {
  const sources = tracked.filter((path) => /^(?:lib|web|native|python|examples|scripts|\.ci)\//.test(path));
  const named = sources.flatMap((path) =>
    [...readFileSync(join(root, path), 'utf8').matchAll(/\bdocs\/[\w-]+\.md\b/g)].map(([page]) => [
      path,
      page,
    ]),
  );
  expect(named.length).toBeGreaterThan(10);
  for (const [path, page = ''] of named) expect(existsSync(join(root, page)), `${path}: ${page}`).toBe(true);
});

test('source files that are named exist', () => {
  const paths = [...everything.matchAll(/`((?:lib|native|test|examples|scripts|bin)\/[\w./-]*)`/g)];
  for (const [, path] of paths) expect(existsSync(join(root, path as string)), path).toBe(true);
});

test('messages and help name pages, and parts of pages, as `gpu-owner docs` prints them', () => {
  const sources = tracked.filter((path) => /^(lib\/.*\.ts|bin\/.*)$/.test(path));
  const named = new Set<string>();
  for (const path of sources) {
    const source = readFileSync(join(root, path), 'utf8');
    const code = source.replace(/\/\*[\s\S]*?\*\/|(?<=^|[\s;{])\/\/.*$/gm, '');
    expect(code.match(/docs\/[\w-]+\.md/), path).toBeNull();
    for (const [, page = ''] of code.matchAll(/gpu-owner docs ([a-z]+[a-z-]*(?:#[\w-]+)?)/g)) named.add(page);
  }
  expect([...named]).toEqual(expect.arrayContaining(['jobs', 'mcp']));
  for (const page of named) {
    const [first = ''] = run(['docs', page]).split('\n');
    const level = page.includes('#') ? /^##+ / : /^# /;
    expect(first, page).toMatch(level);
  }
});

test('shell lines that write below the home directory make its directories first', () => {
  const written = fences.flatMap(({ page, language, body }) => {
    if (language !== 'sh') return [];
    const places = body.matchAll(/(?:>\s*|\b(?:ln|cp|mv|touch) .*?)(~\/\S+)\/[^\s)]*/g);
    return Array.from(places, ({ index, 1: directory = '' }) => {
      const before = body.slice(0, index);
      return { where: `${page}: ${directory}`, isMade: before.includes(`mkdir -p ${directory}\n`) };
    });
  });
  expect(written.length).toBeGreaterThan(5);
  expect(written.filter(({ isMade }) => !isMade)).toEqual([]);
});
