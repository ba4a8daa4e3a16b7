import { setVariables, showValue, usageError } from '../platform/index.ts';
import { durationAfterWait } from './mistakes.ts';

/** Values that a shell offers for an option: some words (others may be right, too), paths, names of simulated machines, or jobs. */
export type Candidates = readonly string[] | 'file' | 'directory' | 'machine' | 'job';

/** An option: the parser, `--help` and completion scripts know it from here alone. */
export interface Option {
  /** A verb phrase in lower case without a full stop, with units and default. Shells show its first clause. */
  help: string;
  short?: string;
  /** How help names the value; missing: the option takes none. */
  value?: string;
  /** The value may be left out, and is attached by '=': `--wait[=DURATION]`. */
  isValueOptional?: boolean;
  isRepeatable?: boolean;
  /** For gpu-owner itself: neither help nor completion shows it. */
  isHidden?: boolean;
  /** Rarely needed: only `--help --all` shows it. */
  isAdvanced?: boolean;
  candidates?: Candidates;
}

/** Options by their names without dashes, in the order of help. */
export type OptionTable = Readonly<Record<string, Option>>;

/** Options that help shows together. */
export interface OptionGroup {
  readonly title?: string;
  /** Operands that are explained among them: what is typed, and its help. */
  readonly operands?: readonly (readonly [label: string, help: string])[];
  readonly options: OptionTable;
  /** Text below them. */
  readonly notes?: string;
}

/** Options of every command. */
export const COMMON_OPTIONS = {
  help: { short: 'h', help: 'print this help' },
} satisfies OptionTable;

/** The same options, which only `--help --all` shows. */
export function advanced<Table extends OptionTable>(table: Table): Table {
  const shown = Object.entries(table).map(([name, option]) => [name, { ...option, isAdvanced: true }]);
  return Object.fromEntries(shown) as Table;
}

/** An option of commands that look at GPUs or at locks. */
export const SIMULATE = {
  simulate: {
    value: 'N|MACHINE|FILE',
    help: "use simulated GPUs instead of the driver's",
    candidates: 'machine',
    isAdvanced: true,
  },
} satisfies OptionTable;

/** `true` for an option without a value; a list where it is repeatable. */
type ValueOf<O> = O extends { isRepeatable: true }
  ? string[]
  : O extends { value: string }
    ? O extends { isValueOptional: true }
      ? string | true
      : string
    : true;

/** The values of options that aren't known by name. */
export type AnyValues = Readonly<Record<string, string | true | string[] | undefined>>;

/** The values of the options of a table. */
export type InferValues<Table> = string extends keyof Table
  ? AnyValues
  : { readonly [Name in keyof Table]?: ValueOf<Table[Name]> };

type AllOf<Union> = (Union extends unknown ? (each: Union) => void : never) extends (all: infer All) => void
  ? All
  : never;

/** Arguments of a command whose options are in these groups. */
export interface Parsed<Groups extends readonly OptionGroup[] = readonly OptionGroup[]> {
  values: InferValues<AllOf<Groups[number]['options']>> & InferValues<typeof COMMON_OPTIONS>;
  positionals: string[];
  /** The user's command line, where the command takes one. */
  command: string[];
  /** All arguments as they were given. */
  args: readonly string[];
}

/** Has this process and its children use a simulated machine, if the command line names one. @throws ERR_INVALID_ARGUMENT */
export function simulateMachine({ simulate: machine }: AnyValues): void {
  if (typeof machine !== 'string') return;
  // An empty variable of a script must not lead to the real GPUs.
  if (machine === '')
    throw usageError(
      '--simulate needs a number of GPUs (4), the name of a machine, or the path of a file that describes one',
    );
  setVariables({ GPU_OWNER_SIMULATE: machine });
}

/** For commands that take options only. */
export function rejectOperands({
  positionals: [word],
  values,
}: {
  positionals: readonly string[];
  values: AnyValues;
}): void {
  if (word === undefined) return;
  const option = durationAfterWait(values, word);
  throw usageError(
    `${showValue(word)} is not expected here; ${option === null ? 'see --help' : `write ${option}`}`,
  );
}
