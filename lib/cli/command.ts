import type { OptionTable } from './arguments.ts';

/** What may follow a command's options. */
export type Operands =
  /** A command line of the user's. */
  | 'command-line'
  /** Files, and behind `--` a command line of the user's. */
  | 'files-and-command-line'
  /** Words: the first, and what may follow it. */
  | { first: readonly string[]; after?: Readonly<Record<string, readonly string[]>> };

/** Commands by their names, loaded when they are called for. */
export type Commands = Readonly<Record<string, () => Promise<Command>>>;

/** A command, as main.ts runs it and `gpu-owner completion` describes it to shells. */
export interface Command {
  run: (args: readonly string[]) => Promise<void>;
  /** What --help prints. Lines such as `  --json   an array` explain the options. */
  help: string;
  /** The options that it parses, without those that every command has. */
  options: OptionTable;
  operands?: Operands;
  /** Of a group, as `exp` is: its own. It takes nothing else then. */
  commands?: Commands;
}
