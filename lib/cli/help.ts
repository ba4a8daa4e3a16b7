export const CRITERIA_HELP = `Which GPUs will do (default: no compute process of anybody, at most 100 MiB in
use beyond what visible graphics processes explain):
  --min-free-memory SIZE    at least this much memory free, e.g. 20GiB
  --max-used-memory SIZE    at most this much in use ("any": don't care)
  --allow-processes         share with processes that run there without a claim
  --max-power WATTS         at most this power draw
  --max-utilization PERCENT at most this busy
  --max-temperature CELSIUS at most this hot
  --devices LIST            only these: indices, ranges, UUIDs, names (0,2-3);
                            MIG instances as 0:2
  --exclude LIST            not these
  --exclude-names NAME      not models of this name
  --force                   skip health and use, never other people's claims`;

/** Options of every command. */
export const EVERY_HELP = `  --simulate N|MACHINE      simulated GPUs instead of the driver's
  -h, --help                this text`;

/** Options of commands that look at locks. */
export const COMMON_HELP = `  --lock-dir PATH           another lock directory (all claimants must use it)
  --conventions LIST        other tools' locks that count: auto (default), none,
                            or some of safe-gpu,gpu_lock,gpu-scheduler,pid-files
${EVERY_HELP}`;

export const MAIN_HELP = `Usage: gpu-owner COMMAND [OPTIONS]

Exclusive use of NVIDIA GPUs on a shared machine, without a daemon.

Commands:
  run         claim GPUs, run a command on them, give them back when it ends
  hold        claim GPUs and hold them until standard input is closed
  status      show every GPU: free, or who has it
  find        print what CUDA_VISIBLE_DEVICES would be, without claiming
  queue       show who waits for GPUs, and for which
  exp         run experiments: a sweep of tasks on many GPUs, with results
  doctor      say what is wrong on this machine, and what to do
  simulate    look after a simulated machine
  completion  print what makes a shell complete all this

gpu-owner COMMAND --help explains each. Try it without a GPU:
  gpu-owner run --simulate 4 -n 2 -- env`;
