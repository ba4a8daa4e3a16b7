import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { packageRoot } from '../native.ts';
import { closest, fitColumns, listWords, showValue } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './command-line.ts';
import { pageWidth, print } from './output.ts';

const DIRECTORY = join(packageRoot, 'docs');

/** Words that people look for, and the parts of pages that are about them: subjects, other tools, and their files. */
export const SUBJECTS: Readonly<Record<string, string>> = {
  'safe-gpu': 'conventions#from-safe-gpu',
  safe_gpu: 'conventions#from-safe-gpu',
  'gpu-lock': 'conventions#from-gpu_lock',
  gpu_lock: 'conventions#from-gpu_lock',
  '.gpu_locks': 'conventions#from-gpu-scheduler',
  gpu_locks: 'conventions#from-gpu-scheduler',
  'gpu-scheduler': 'conventions#from-gpu-scheduler',
  gpu_scheduler: 'conventions#from-gpu-scheduler',
  gpuscheduler: 'conventions#from-gpu-scheduler',
  'pid-files': 'conventions#from-workers-with-pid-files',
  'experiment_manager.py': 'conventions#from-the-distributed-experiments',
  experiment_manager: 'conventions#from-the-distributed-experiments',
  'experiment_worker.py': 'conventions#from-the-distributed-experiments',
  experiment_worker: 'conventions#from-the-distributed-experiments',
  'launch_distributed.sh': 'conventions#from-the-distributed-experiments',
  'launch_distributed.bat': 'conventions#on-windows',
  '.bat': 'conventions#on-windows',
  windows: 'conventions#on-windows',
  selftest: 'doctor#self-test',
  uninstall: 'installation#uninstall',
  upgrade: 'installation#upgrade',
  'exit-codes': 'troubleshooting#exit-codes',
  errors: 'troubleshooting#exit-codes',
  cuda: 'troubleshooting#cuda-codes',
  completion: 'installation#complete-commands-with-the-tab-key',
  queue: 'claims#the-wait-queue',
  hold: 'claims#any-language',
  preemption: 'claims#jobs-that-give-way',
  arrays: 'jobs#arrays',
  notifications: 'jobs#get-notified',
  top: 'status#on-a-terminal-top',
  web: 'status#in-a-browser-web',
  mig: 'sharing#mig-instances',
  containers: 'where-it-runs#docker-claim-inside-the-container',
  docker: 'where-it-runs#docker-claim-inside-the-container',
  podman: 'where-it-runs#podman-apptainer-singularity',
  apptainer: 'where-it-runs#podman-apptainer-singularity',
  kubernetes: 'where-it-runs#kubernetes',
  tmux: 'where-it-runs#tmux-and-screen',
  ssh: 'where-it-runs#nohup-and-ssh',
  systemd: 'where-it-runs#systemd',
  cron: 'where-it-runs#cron',
  slurm: 'where-it-runs#slurm',
  sge: 'where-it-runs#sge-and-others-that-only-count',
  virtualenv: 'where-it-runs#virtualenv',
  conda: 'where-it-runs#conda',
  jupyter: 'where-it-runs#jupyter',
  'vs-code': 'where-it-runs#vs-code-and-debuggers',
  desktop: 'where-it-runs#a-gpu-that-also-drives-the-display',
  wsl: 'where-it-runs#wsl-2',
  'compute-modes': 'where-it-runs#compute-modes',
  mps: 'where-it-runs#mps',
  jetson: 'where-it-runs#memory-shared-with-the-system',
  experiments: 'sweeps#the-first-sweep',
  tasks: 'sweeps#what-a-task-gets',
  grid: 'sweeps#a-grid',
  hydra: 'search#command-lines-of-hydra',
  wandb: 'search#sweep-files-of-wandb',
  optuna: 'search#search-and-sweeps-of-wandb-and-hydra',
  redis: 'many-machines#with-a-redis',
  manager: 'many-machines#a-manager-alone',
  bookings: 'fairness#bookings',
  book: 'fairness#bookings',
  limits: 'administrators#limits',
  configuration: 'administrators#the-configuration-file',
  environment: 'administrators#environment-variables',
  report: 'usage#the-ledger',
  prometheus: 'metrics#a-machine',
  faults: 'simulator#faults',
  ci: 'simulator#test-your-own-code',
  pytest: 'simulator#test-your-own-code',
  agents: 'mcp#the-tools',
};

/** The names of all pages. */
function pages(): string[] {
  if (!existsSync(DIRECTORY)) return [];
  const files = readdirSync(DIRECTORY).filter((name) => /^[a-z].*\.md$/.test(name));
  return files.map((name) => name.slice(0, -'.md'.length)).sort();
}

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

function docs({ positionals: [word, more] }: Parsed<typeof GROUPS>): void {
  if (more !== undefined) throw usage(`unexpected argument ${showValue(more)}: docs takes one page`);
  const known = pages();
  if (known.length === 0) {
    throw new GPUOwnerError(
      'ERR_INTERNAL',
      `this package has no pages: ${DIRECTORY} is missing. Install it again.`,
    );
  }
  print(word === undefined ? list(known) : textFor(word, known));
}

/** The page, or the part of it, that a word names. @throws ERR_INVALID_ARGUMENT */
function textFor(word: string, known: readonly string[]): string {
  const [name = '', part] = pageNamed(word, known).split('#');
  const heading = word.split('#')[1] ?? part;
  const text = readable(textOf(name));
  if (heading === undefined || heading === '') return text;
  const found = partOf(text, heading.toLowerCase());
  if (found !== null) return found;
  const parts = headingsOf(text).map(({ anchor }) => anchor);
  const meant = closest(heading, parts);
  throw usage(
    `the page ${name} has no part ${showValue(heading)}; ${meant === null ? `it has ${listWords(parts.slice(1))}` : `did you mean '${name}#${meant}'?`}`,
  );
}

/** A page's name, or the part of one that is about a subject. @throws ERR_INVALID_ARGUMENT */
function pageNamed(word: string, known: readonly string[]): string {
  // As messages and links name them, too: docs/jobs.md#states
  const name = word.replace(/^.*\/|\.md(#.*)?$|#.*$/g, '').toLowerCase();
  if (known.includes(name)) return name;
  const part = Object.hasOwn(SUBJECTS, name) ? SUBJECTS[name] : undefined;
  if (part !== undefined) return part;
  const meant = closest(name, known);
  throw usage(
    `there is no page ${showValue(word)}${meant === null ? '; `gpu-owner docs` lists them' : `; did you mean '${meant}'?`}`,
  );
}

function textOf(name: string): string {
  return readFileSync(join(DIRECTORY, `${name}.md`), 'utf8');
}

/** The headings of a page, named as in links. */
function headingsOf(text: string): { index: number; depth: number; anchor: string }[] {
  const isCode = (at: number) => text.slice(0, at).split(/^```/m).length % 2 === 0;
  const anchorOf = (title: string) =>
    title
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '')
      .replace(/\s/g, '-');
  return [...text.matchAll(/^(#+) (.*)$/gm)]
    .filter(({ index }) => !isCode(index))
    .map(({ index, 1: marks = '', 2: title = '' }) => ({
      index,
      depth: marks.length,
      anchor: anchorOf(title),
    }));
}

/** The part of a page below a heading. null: there is none */
function partOf(text: string, heading: string): string | null {
  const headings = headingsOf(text);
  const at = headings.findIndex(({ anchor }) => anchor === heading);
  const found = headings[at];
  if (found === undefined) return null;
  const next = headings.slice(at + 1).find(({ depth }) => depth <= found.depth);
  return text.slice(found.index, next?.index).trimEnd();
}

function list(names: readonly string[]): string {
  const width = Math.max(...names.map((name) => name.length)) + 2;
  const title = (name: string) => /^# (.*)$/m.exec(textOf(name))?.[1] ?? '';
  return names.map((name) => fitColumns(name.padEnd(width) + title(name), pageWidth())).join('\n');
}

/** Without what only a browser shows: pictures and comments. */
function readable(text: string): string {
  return text
    .replace(/<!--.*?-->\n?/gs, '')
    .replace(/^!\[.*\]\(.*\)\n/gm, '')
    .replace(/\n{3,}/g, '\n\n')
    .trimEnd();
}

export const COMMAND: Command = {
  usage: '[PAGE]',
  about:
    'Prints a page of the documentation of this version, or a part of it (jobs#output). Without PAGE it lists the pages.',
  groups: GROUPS,
  operands: { first: pages() },
  run: docs,
};
