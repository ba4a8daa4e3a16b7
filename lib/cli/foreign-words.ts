// Words of other tools (Slurm, Docker, task-spooler, the shell), and what they are called here.

const COMMANDS: Readonly<Record<string, readonly string[]>> = {
  claim: ['run', 'hold'],
  exec: ['run'],
  kill: ['cancel'],
  list: ['jobs', 'status'],
  ls: ['jobs', 'status'],
  ps: ['jobs', 'status'],
  release: ['cancel'],
  reserve: ['run', 'hold'],
  rm: ['cancel'],
  sbatch: ['submit'],
  scancel: ['cancel'],
  sinfo: ['status'],
  squeue: ['queue'],
  srun: ['run'],
  start: ['run', 'submit'],
  stop: ['cancel'],
  tail: ['logs'],
};

const OPTIONS: Readonly<Record<string, readonly string[]>> = {
  for: ['--time', '-t', '--timeout', '--walltime', '--time-limit'],
  gpus: ['--n', '--gres', '--gpu', '--ngpus', '--num-gpus', '--count', '-g', '-G'],
  grid: ['--sweep', '--params', '--parameters'],
  'min-free-memory': ['--mem', '--memory', '--vram', '--free-memory'],
  name: ['-J', '--job-name'],
  note: ['--comment'],
  on: ['--host', '--node', '--nodelist', '-w'],
  'after-ok': ['--dependency', '-d'],
};

/** Commands of ours that do what this one does elsewhere. */
export function commandsFor(word: string, known: readonly string[]): readonly string[] {
  return (Object.hasOwn(COMMANDS, word) ? (COMMANDS[word] ?? []) : []).filter((name) => known.includes(name));
}

/** The option of ours that means what this one means elsewhere; null: none of these. @param given with its dashes */
export function optionFor(given: string, known: readonly string[]): string | null {
  const [name] = Object.entries(OPTIONS).find(([, words]) => words.includes(given)) ?? [];
  return name !== undefined && known.includes(name) ? name : null;
}
