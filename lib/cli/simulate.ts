import { writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import {
  GROUPS_OF_KEYS,
  playScenario,
  recordMachine,
  SETTINGS,
  TOOL_COMMANDS,
} from '../../simulator/scenarios/index.ts';
import { errorCode, GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { setVariables, systemError, usageError } from '../platform/index.ts';
import { SIZES } from './claim-options.ts';
import type { Command } from './command.ts';
import { type InferValues, type OptionTable, rejectOperands } from './command-line.ts';
import { print, write } from './output.ts';
import { parse } from './parser.ts';

/** Processes of a scenario could not start. */
const EXIT_FAILED = 1;

const MACHINE = {
  machine: {
    value: 'MACHINE',
    help: 'use this machine (default: GPU_OWNER_SIMULATE)',
    candidates: 'machine',
  },
} satisfies OptionTable;

const RECORD = {
  output: {
    short: 'o',
    value: 'FILE',
    help: 'write to FILE (record, default: standard output)',
    candidates: 'file',
  },
  uuids: { help: "keep the GPUs' UUIDs (record)" },
} satisfies OptionTable;

const PLAY = {
  speed: { value: 'FACTOR', help: 'play this many times as fast (play)' },
  loop: { help: 'begin again at the end, until Ctrl-C (play)' },
  keep: { help: 'keep what the steps have set (play)' },
} satisfies OptionTable;

async function simulate(args: readonly string[]): Promise<void> {
  const command = commandIn(args);
  if (command !== 'record' && command !== 'play') return becomeTool(args);
  if (command === 'play') {
    const { values, positionals } = parse(args, { ...MACHINE, ...PLAY });
    return play(positionals.slice(1), values, useMachine(values));
  }
  const { values, positionals } = parse(args, { ...MACHINE, ...RECORD });
  useMachine(values);
  rejectOperands({ positionals: positionals.slice(1), values });
  record(values);
}

/** @returns the machine that the command line names */
function useMachine({ machine }: InferValues<typeof MACHINE>) {
  if (machine !== undefined) setVariables({ GPU_OWNER_SIMULATE: machine });
  return machine;
}

/** The first word that is neither an option nor the value of one. */
function commandIn(args: readonly string[]): string | undefined {
  return args.find((arg, at) => !arg.startsWith('-') && args[at - 1] !== '--machine');
}

function record({ output, uuids }: InferValues<typeof RECORD>): void {
  const text = recordMachine(uuids === true);
  try {
    if (output !== undefined) writeFileSync(output, text);
    else write(1, text);
  } catch (error) {
    throw usageError(`--output: ${output} can't be written (${errorCode(error)}); name another file`);
  }
}

async function play(
  [path, ...more]: readonly string[],
  { speed, loop, keep }: InferValues<typeof PLAY>,
  machine: string | undefined,
): Promise<void> {
  if (path === undefined || more.length > 0)
    throw usageError('which scenario? Name one file: `simulate play FILE`');
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      interrupted.abort();
      process.exitCode = 128 + constants.signals[signal];
    });
  }
  const failed = await playScenario(path, {
    machine,
    speed,
    loop: loop === true,
    keep: keep === true,
    signal: interrupted.signal,
    tell: (seconds, text) => print(`${String(seconds).padStart(5)} s  ${text}`),
  });
  if (failed > 0) process.exitCode ??= EXIT_FAILED;
}

/** Becomes the tool that comes with the simulated driver: it parses its arguments, and signals reach it. */
function becomeTool(args: readonly string[]): void {
  const path = nativeFile('gpu-owner-simulator');
  const error = native().processExec(path, ['gpu-owner simulate', ...args], 0, [], 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${path} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

export const COMMAND: Command = {
  usage: '[--machine MACHINE] COMMAND',
  about: `Shows and changes a simulated machine: GPUs that exist only for programs that use the simulated driver. MACHINE is a number of plain GPUs (1 to 64), a named machine, or the path of a file that describes one (./server.conf). The state of the machine is in GPU_OWNER_SIMULATE_DIR, by default \${TMPDIR:-/tmp}/gpu-owner-simulated-UID.`,
  groups: [
    { options: MACHINE },
    {
      title: 'Commands:',
      operands: TOOL_COMMANDS,
      options: {
        json: { help: 'print JSON (machines, show)' },
        memory: { value: 'SIZE', help: 'use SIZE of GPU memory (occupy)', candidates: SIZES },
        utilization: {
          value: 'PERCENT',
          help: 'compute this much of the time (occupy, default: 0)',
        },
        type: {
          value: 'TYPE',
          help: 'be a process of this type (occupy): compute, graphics, compute+graphics, or mps-server, whose clients are the processes that compute on the GPU meanwhile',
          candidates: ['compute', 'graphics', 'compute+graphics', 'mps-server'],
        },
        name: { value: 'NAME', help: 'use this name for the process (occupy)' },
        ...RECORD,
        ...PLAY,
      },
    },
    ...GROUPS_OF_KEYS,
  ],
  operands: {
    first: TOOL_COMMANDS.map(([label]) => label.replace(/ .*/, '')),
    after: {
      play: 'file',
      set: SETTINGS,
    },
  },
  exec: simulate,
};
