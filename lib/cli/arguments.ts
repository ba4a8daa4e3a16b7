// For commands whose options aren't described yet.
import { CRITERIA_GROUP, claimingOptions, countOption, LOCKS } from './claim-options.ts';
import type { TextCommand } from './command.ts';
import {
  type CommandLine,
  type OptionTable as NewTable,
  type Option,
  type Parsed,
  parse as parseTable,
  refuseWords as refuse,
} from './options.ts';

export { claimOptions, NAMES } from './claim-options.ts';
export type { Parsed, Values } from './options.ts';
export type OptionTable = TextCommand['options'];

export const CLAIM: OptionTable = {
  ...countOption('claim'),
  ...claimingOptions(''),
  ...LOCKS,
  ...CRITERIA_GROUP.options,
};

export function described(table: OptionTable): NewTable {
  const entries = Object.entries(table).map(([name, option]): [string, Option] => {
    if (!('type' in option)) return [name, option];
    const { type, short, multiple = false } = option;
    return [
      name,
      {
        help: '',
        isRepeatable: multiple,
        ...(short === undefined ? {} : { short }),
        ...(type === 'string' ? { value: 'VALUE' } : {}),
      },
    ];
  });
  return Object.fromEntries(entries);
}

export function parse(
  args: readonly string[],
  table: OptionTable,
  takesCommand: boolean | 'behind-dashes' = false,
): Parsed {
  const commandLine: CommandLine = takesCommand === true ? 'word' : takesCommand ? 'dashes' : null;
  return parseTable(args, described(table), commandLine);
}

export function refuseWords(positionals: readonly string[], values = {}): void {
  refuse({ positionals: [...positionals], values });
}
