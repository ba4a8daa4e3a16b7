import type { CommandDescription, OptionDescription, Program } from './description.ts';

/** A script for fish 3.1 or newer. */
export function fish({ commands }: Program): string {
  const valued = [
    ...new Set(commands.flatMap(({ options }) => options.filter(takesNext).flatMap(spellings))),
  ];
  const runs = commands.filter(({ operands }) => operands === 'command-line').map(({ name }) => name);
  return TEMPLATE.replace('@VALUED@', () => valued.join(' '))
    .replace('@RUNS@', () => runs.join(' '))
    .replace('@LINES@', () => commands.flatMap(linesOf).join('\n'));
}

function takesNext({ value }: OptionDescription): boolean {
  return value?.form === 'next';
}

function spellings({ name, short }: OptionDescription): string[] {
  return [`--${name}`, ...(short === null ? [] : [`-${short}`])];
}

function linesOf({ name, summary, options, operands }: CommandDescription): string[] {
  const begin = 'complete -c gpu-owner';
  const lines = [`${begin} -n __gpu_owner_at -a ${name} -d ${quote(summary)}`];
  const here = `${begin} -n '__gpu_owner_at ${name}'`;
  for (const option of options) lines.push(`${here} ${optionArguments(option)}`);
  if (operands === 'command-line') {
    lines.push(`${begin} -n '__gpu_owner_at ${name} --command' -a '(__gpu_owner_command ${name})'`);
  } else if (operands !== null) {
    const cases = [['--first', operands.first] as const, ...Object.entries(operands.after ?? {})];
    for (const [after, words] of cases) {
      lines.push(`${begin} -n '__gpu_owner_at ${name} ${after}' -a ${quote(words.join(' '))}`);
    }
  }
  return lines;
}

function optionArguments({ name, short, summary, value }: OptionDescription): string {
  const parts = [`-l ${name}`];
  if (short !== null) parts.push(`-s ${short}`);
  if (value?.form === 'next') parts.push('-x');
  if (value?.values === 'directory') parts.push(`-a '(__fish_complete_directories)'`);
  else if (value?.values) parts.push(`-a ${quote(value.values.join(' '))}`);
  if (summary !== '') parts.push(`-d ${quote(summary)}`);
  return parts.join(' ');
}

function quote(text: string): string {
  return `'${text.replace(/['\\]/g, '\\$&')}'`;
}

const TEMPLATE = `# Completion of gpu-owner for fish. Made by \`gpu-owner completion fish\`.

# Prints the words before the cursor from the first operand of COMMAND on. Fails where it isn't about COMMAND.
function __gpu_owner_operands # COMMAND
    set -l words (commandline -opc)
    test "$words[2]" = "$argv[1]"; or return 1
    set -e words[1..2]
    while set -q words[1]
        set -l word $words[1]
        if string match -q -- -- $word
            set -e words[1]
            # Nothing that follows is an option.
            set -q words[1]; or set words --
            break
        else if contains -- $word @VALUED@
            set -e words[1]
        else if not string match -qr -- '^-.' $word
            break
        end
        set -e words[1]
    end
    string join -- \\n $words
    return 0
end

# Does the cursor stand where a command is expected? With COMMAND: one of its options; with COMMAND and --first: its
# first operand; with --command: the user's own command line; with a WORD: what follows this operand.
function __gpu_owner_at # [COMMAND [--first | --command | WORD]]
    if not set -q argv[1]
        test (count (commandline -opc)) -eq 1
        return
    end
    set -l operands (__gpu_owner_operands $argv[1]); or return 1
    switch "$argv[2]"
        case ''
            not set -q operands[1]; or not contains -- $argv[1] @RUNS@ --
        case --first
            not set -q operands[1]; or string match -q -- -- $operands[1]
        case --command
            set -q operands[1]; or not string match -q -- '-*' (commandline -ct)
        case '*'
            test "$operands[1]" = "$argv[2]"
    end
end

# Completes the user's own command as if it stood alone.
function __gpu_owner_command # COMMAND
    set -l words (__gpu_owner_operands $argv[1] | string match -v -- --)
    set -l line (string escape -- $words) (commandline -ct)
    complete -C "$line"
end

complete -c gpu-owner -f
complete -c gpu-owner -n __gpu_owner_at -l help -s h -d 'show help'
complete -c gpu-owner -n __gpu_owner_at -l version -d 'show the version'
@LINES@`;
