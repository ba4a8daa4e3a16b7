// The words of the simulator, for help and completion.

/** What is typed, and its help. */
type Entries = readonly (readonly [label: string, help: string])[];

export const TOOL_COMMANDS: Entries = [
  ['machines', 'list the named machines'],
  ['show', 'show every GPU: memory, processes, what is switched on'],
  ['set [gpu=LIST|all] KEY=VALUE ...', 'change something, also while programs use the machine'],
  [
    'occupy GPU',
    'be a foreign process on a GPU (index, UUID, or 0:2 for a MIG instance) until killed or until standard input closes; prints `ready PID` when it is visible; a line `memory SIZE` there changes its memory',
  ],
  ['reset', 'undo every change of `set`'],
  [
    'record',
    'print a file that describes this machine, the real one or MACHINE: `--simulate ./FILE` is like it',
  ],
  ['play FILE', 'play a scenario: processes come and go, GPUs fail, the driver is updated'],
  [
    'shell [-- COMMAND ...]',
    'start a shell, or COMMAND, whose programs find the simulated libraries, and an `nvidia-smi` for simulated machines, where they would find the real ones',
  ],
];

const KEYS_OF_GPUS: Entries = [
  ['lost=on|off', 'the GPU has fallen off the bus'],
  ['reset-required=on|off', 'the GPU needs a reset'],
  ['no-permission=on|off', 'nobody may use the GPU'],
  ['ecc-errors=NUMBER', 'number of uncorrectable memory errors since the last reset'],
  ['memory-repair=pending|failed|off', 'what becomes of faulty memory'],
  ['compute-mode=default|exclusive-thread|exclusive-process|prohibited', 'its compute mode'],
  ['hidden-processes=on|off', 'its processes are invisible, as in a container; their memory counts'],
  ['hidden-memory=SIZE', 'memory in use by no visible process'],
  ['utilization=PERCENT', 'or default: what its processes compute'],
  ['power=WATTS', 'or default: as its utilization'],
  ['temperature=DEGREES', 'or default: as its utilization'],
  ['energy=JOULES', 'the energy counter'],
  ['xid=NUMBER', 'the driver reports this XID error to programs that wait for events'],
  ['mig=on|off', 'whether MIG is on'],
  ['display=on|off', 'whether a display is attached'],
  ['instances=0,2|none|default', 'the MIG instances that exist'],
];

const KEYS_OF_BOTH: Entries = [
  ['hang=CALL,...|off', 'these calls block until the fault is lifted'],
  ['latency=CALL:MICROSECONDS,...|off', 'these calls take longer'],
  ['unsupported=CALL,...|off', 'these calls return NOT_SUPPORTED (3)'],
  ['error=CALL:CODE,...|off', 'these calls return CODE; 0 undoes it'],
];

const KEYS_OF_THE_MACHINE: Entries = [
  ['teardown=MILLISECONDS', 'how long the driver still lists a process that has died'],
  [
    'pid-offset=NUMBER',
    'the driver adds NUMBER to PIDs, as older drivers do in a container, where they report PIDs of the host',
  ],
  [
    'quirks=QUIRK,...|off',
    'the driver differs from what `selftest` proves: serial, all-visible, small-contexts',
  ],
  ['count=on|off', 'count each call from 0; `show --json` prints the counts'],
];

/** As the simulator names them: simulator/calls.h. */
const CALLS =
  'init, count, handle, attach, index, name, uuid, pci, minor, memory, power, power-limit, energy, utilization, temperature, compute-mode, display, persistence, mig, processes, graphics-processes, mps-processes, process-memory, fields, topology, attributes, board, clocks, pcie, nvlink, fan, ecc, codec, bar1, events, cuda-init, cuda-context, cuda-alloc, cuda-free, all';

/** The keys of `simulate set`, as its help lists them. */
export const GROUPS_OF_KEYS = [
  { title: 'Keys of `set` for GPUs (after gpu=):', operands: KEYS_OF_GPUS, options: {} },
  {
    title: 'Keys for GPUs, or without gpu= for the whole machine:',
    operands: KEYS_OF_BOTH,
    options: {},
    notes: `Calls: ${CALLS}`,
  },
  { title: 'Keys for the whole machine:', operands: KEYS_OF_THE_MACHINE, options: {} },
];

/** Words of `simulate set` to complete: 'key=on|off' is the beginning of a word, and two words; 'key=WATTS' is a beginning only. */
export const SETTINGS = GROUPS_OF_KEYS.flatMap(({ operands }) => operands).flatMap(([label]) => {
  const [key, values = ''] = label.split('=');
  const known = values.split('|').filter((value) => /^[a-z-]+$/.test(value));
  return [`${key}=`, ...known.map((value) => `${key}=${value}`)];
});
