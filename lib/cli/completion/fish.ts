import {
  type CommandDescription,
  everyCommand,
  lastWord,
  type OptionDescription,
  type ProgramDescription,
} from './description.ts';

/** A script for fish 3.1 or newer. */
export function fish(program: ProgramDescription): string {
  const commands = everyCommand(program);
  const valued = [
    ...new Set(commands.flatMap(({ options }) => options.filter(takesNext).flatMap(spellings))),
  ];
  const named = (which: (command: CommandDescription) => boolean) =>
    commands
      .filter(which)
      .map(({ name }) => (name.includes(' ') ? quote(name) : name))
      .join(' ');
  return TEMPLATE.replace('@VALUED@', () => valued.join(' '))
    .replace('@ENDING@', () => named((each) => each.operands === 'command-line' || each.commands.length > 0))
    .replaceAll('@DASHES@', () => named(({ operands }) => operands === 'files-and-command-line'))
    .replace('@LINES@', () => commands.flatMap(linesOf).join('\n'));
}

function takesNext({ form }: OptionDescription): boolean {
  return form === 'next';
}

function spellings({ name, short }: OptionDescription): string[] {
  return [`--${name}`, ...(short === undefined ? [] : [`-${short}`])];
}

function linesOf({ name, summary, options, operands }: CommandDescription): string[] {
  const begin = 'complete -c gpu-owner';
  const at = (place: string) => `${begin} -n ${quote(`__gpu_owner_at ${place}`.trimEnd())}`;
  const path = name.includes(' ') ? `"${name}"` : name;
  const group = name.slice(0, -lastWord({ name }).length).trimEnd();
  const lines = [`${at(group && `${group} --first`)} -a ${lastWord({ name })} -d ${quote(summary)}`];
  const here = at(path);
  for (const option of options) lines.push(`${here} ${optionArguments(option)}`);
  if (operands === 'command-line') {
    lines.push(`${at(`${path} --command`)} -a '(__gpu_owner_command ${path})'`);
  } else if (operands === 'files-and-command-line') {
    lines.push(`${at(`${path} --files`)} -F`, `${at(`${path} --behind`)} -a '(__gpu_owner_command ${path})'`);
  } else if (operands === 'jobs') {
    lines.push(`${here} -a '(__gpu_owner_jobs)'`);
  } else if (operands !== null) {
    const cases = [['--first', operands.first] as const, ...Object.entries(operands.after ?? {})];
    for (const [after, words] of cases) {
      const offers = words === 'file' ? '-F' : `-a ${quote(words.join(' '))}`;
      lines.push(`${at(`${path} ${after}`)} ${offers}`);
    }
  }
  return lines;
}

function optionArguments({ name, short, summary, form, offers }: OptionDescription): string {
  const parts = [`-l ${name}`];
  if (short !== undefined) parts.push(`-s ${short}`);
  if (form === 'next') parts.push(offers === 'file' ? '-r' : '-x');
  if (offers === 'directory') parts.push(`-a '(__fish_complete_directories)'`);
  else if (offers === 'file') parts.push('-F');
  else if (offers === 'job') parts.push(`-a '(__gpu_owner_jobs)'`);
  else if (offers !== null) parts.push(`-a ${quote(offers.join(' '))}`);
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
    set -l last (math 1 + (count (string split ' ' -- $argv[1])))
    test "$words[2..$last]" = "$argv[1]"; or return 1
    set -e words[1..$last]
    if contains -- $argv[1] @DASHES@
        # Operands of these are only what stands behind --, the user's command; nothing yet is --.
        set -l at (contains -i -- -- $words); or return 0
        set -e words[1..$at]
        set -q words[1]; or set words --
        string join -- \\n $words
        return 0
    end
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
# first operand; with --command: the user's own command line; with --files and --behind: before and behind --; with a WORD:
# what follows this operand.
function __gpu_owner_at # [COMMAND [--first | --command | --files | --behind | WORD]]
    if not set -q argv[1]
        test (count (commandline -opc)) -eq 1
        return
    end
    set -l operands (__gpu_owner_operands $argv[1]); or return 1
    switch "$argv[2]"
        case ''
            not set -q operands[1]; or not contains -- $argv[1] @ENDING@ @DASHES@ --
        case --first
            not set -q operands[1]; or string match -q -- -- $operands[1]
        case --command
            set -q operands[1]; or not string match -q -- '-*' (commandline -ct)
        case --files
            not set -q operands[1]
        case --behind
            set -q operands[1]
        case '*'
            test "$operands[1]" = "$argv[2]"
    end
end

# Numbers and names of the user's jobs.
function __gpu_owner_jobs
    command -q gpu-owner; and command gpu-owner jobs --words 2>/dev/null
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
