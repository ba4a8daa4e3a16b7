// Words of other tools (Slurm, Docker, task-spooler, the shell), and what they are called here.

/** By our commands. */
const COMMANDS: Readonly<Record<string, string>> = {
  run: 'acquire claim exec lock reserve salloc srun start',
  hold: 'acquire claim lock reserve salloc',
  submit: 'add bsub enqueue nohup qsub sbatch start',
  jobs: 'bjobs history info list ls ps qstat sacct scontrol show',
  logs: 'attach cat output tail',
  cancel: 'bkill delete kill qdel release remove rm scancel stop unlock',
  resubmit: 'rerun restart retry',
  queue: 'qstat squeue',
  status: 'free gpustat info list ls nvidia-smi ps show sinfo',
  top: 'dashboard gpustat monitor nvidia-smi nvitop nvtop watch',
  web: 'dashboard monitor serve',
  report: 'sacct sreport usage',
  find: 'free',
  docs: 'man',
};

/** By our options. */
const OPTIONS: Readonly<Record<string, string>> = {
  devices: '--device --device-id --device-ids --gpu-id --gpu-ids --gpu-index --gpu-list --ids -i',
  for: '--time -t --timeout --walltime --time-limit',
  gpus: '--n --gres --gpu --ngpus --num-gpus --nb-gpus --n-gpus --gpus-per-node --gpu-count --count -g -G',
  grid: '--sweep --params --parameters',
  lines: '--tail',
  listen: '--port -p --bind --address --host',
  'min-free-memory': '--mem --memory --vram --free-memory',
  name: '-J --job-name',
  note: '--comment --message',
  notify: '--mail-type --mail-user',
  on: '--host --node --nodelist -w',
  output: '-o --output --out --log --log-file -e --error',
  project: '-D --chdir --workdir',
  'after-ok': '--dependency -d',
  user: '-u --me',
  all: '-u --user --me',
  'no-wait': '--immediate -I --nowait --nonblock',
};

/** Options that no option corresponds to, and what to do. */
const REMEDIES: readonly (readonly [given: string, remedy: string])[] = [
  ['--detach -d --background --bg -b', 'for a job in the background: gpu-owner submit'],
  [
    '-o --output --out --log --log-file -e --error',
    'redirect the output, as of any command: > FILE 2>&1; or write: gpu-owner submit --output FILE',
  ],
  [
    '--partition -p --account -A --qos -q --queue',
    'there is one queue for all: leave it out. --devices and --exclude-names choose GPUs',
  ],
  ['-N --nodes', 'a job is on one machine, and -n N is the number of its GPUs'],
  [
    '--ntasks --ntasks-per-node --cpus-per-task -c',
    'GPUs alone are shared here, no processors: leave it out. -n N is the number of GPUs',
  ],
  ['--lock-dir --lock-directory', 'name it in the environment: GPU_OWNER_LOCK_DIR=PATH'],
  ['--conventions', 'name them in the environment: GPU_OWNER_CONVENTIONS=LIST'],
  ['--simulate', 'name the machine in the environment: export GPU_OWNER_SIMULATE=4'],
  ['--wrap', "the command follows the options: gpu-owner submit -- sh -c 'COMMAND'"],
  ['--array -a', 'many jobs of one command are an array: gpu-owner submit --array 0-9 -- COMMAND'],
];

/** The remedy for an option of another tool that has no counterpart here; null: it is none of these. @param given with its dashes */
export function remedyForOption(given: string): string | null {
  return REMEDIES.find(([words]) => has(words, hyphenated(given)))?.[1] ?? null;
}

/** Commands of ours that do what this one does elsewhere. */
export function commandsFor(word: string, known: readonly string[]): readonly string[] {
  return known.filter((name) => has(COMMANDS[name], word));
}

/** The option of ours that means what this one means elsewhere; null: none of these. @param given with its dashes */
export function optionFor(given: string, known: readonly string[]): string | null {
  const ours = Object.keys(OPTIONS).filter((name) => known.includes(name));
  return ours.find((name) => has(OPTIONS[name], hyphenated(given))) ?? null;
}

function has(words: string | undefined, word: string): boolean {
  return words?.split(' ').includes(word) ?? false;
}

/** `--gpu-ids` for `--gpu_ids`; letters of short options differ by their case. */
function hyphenated(given: string): string {
  return given.startsWith('--') ? given.replaceAll('_', '-').toLowerCase() : given;
}
