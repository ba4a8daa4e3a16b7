import { nativeFile } from '../../native.ts';

/** What an option's value can be: some of these words (others may be right, too), a directory, a file, or anything. */
export type Values = readonly string[] | 'directory' | 'file' | null;

const COUNTS = ['1', '2', '4', '8'];
const SIZES = ['4GiB', '8GiB', '16GiB', '24GiB', '40GiB', '80GiB'];
const DURATIONS = ['30s', '10m', '1h', '8h'];

// By the option's name, which means the same with every command. Nothing here looks at the machine: completion must never be slow.
const VALUES: Readonly<Record<string, Values>> = {
  gpus: COUNTS,
  'gpus-per-task': COUNTS,
  grace: DURATIONS,
  format: ['csv', 'jsonl'],
  output: 'file',
  commands: 'file',
  project: 'directory',
  'conflict-exit-code': ['0', '75'],
  wait: DURATIONS,
  watch: ['1s', '5s', '1m'],
  'lock-timeout': ['2s', '10s'],
  placeholder: ['auto', 'keep', 'none'],
  'visible-devices': ['uuid', 'index'],
  'min-free-memory': SIZES,
  'max-used-memory': ['any', ...SIZES],
  memory: SIZES,
  'lock-dir': 'directory',
};

export function valuesOf(option: string): Values {
  if (option === 'simulate' || option === 'machine') return [...COUNTS, ...machines()];
  return VALUES[option] ?? null;
}

/** Names of simulated machines, from the tool that has them; asked when the script is made, not when it is used. */
function machines(): string[] {
  const { spawnSync } = process.getBuiltinModule('node:child_process');
  const args = ['machines', '--json'];
  const { stdout, status } = spawnSync(nativeFile('gpu-owner-simulator'), args, { encoding: 'utf8' });
  return status === 0 ? (JSON.parse(stdout) as { name: string }[]).map(({ name }) => name) : [];
}
