import {
  type CommandDescription,
  everyCommand,
  lastWord,
  type OptionDescription,
  type ProgramDescription,
} from './description.ts';

/** A script that works as a file `_gpu-owner` in `fpath`, and sourced. */
export function zsh(program: ProgramDescription): string {
  const { commands } = program;
  return TEMPLATE.replace('@COMMANDS@', () => names(commands))
    .replace('@CASES@', () => commands.map(commandCase).join('\n'))
    .replace('@AFTER@', () => everyCommand(program).flatMap(furtherCases).join('\n'));
}

function names(commands: readonly CommandDescription[]): string {
  return commands.map((command) => quote(`${lastWord(command)}:${command.summary}`)).join(' ');
}

function commandCase({ name, options, operands, commands }: CommandDescription): string {
  const specifications = options.flatMap(optionSpecifications);
  if (commands.length > 0) specifications.push("'1: :->first'", "'*:: :->inside'");
  if (operands === 'files-and-command-line') specifications.push("'*: :_files'");
  if (operands === 'command-line') specifications.push("'(-)1: :_command_names -e'", "'*:: :_normal'");
  else if (operands === 'jobs') specifications.push("'*: :_gpu-owner-jobs'");
  else if (operands !== null && typeof operands === 'object')
    specifications.push(quote(`1: :${list(operands.first)}`), "'*: :->further'");
  // Behind the user's command, options are the command's own.
  const flags = operands === 'command-line' ? "-C -S -A '-*'" : '-C -S';
  const call = `_arguments ${flags} ${specifications.join(' \\\n          ')} && ret=0`;
  const label = name.includes(' ') ? quote(name) : name;
  const body = commands.length > 0 ? group(call, name, commands) : behindDashes(call, operands);
  return `      ${label})\n        ${body}\n        ;;`;
}

function group(call: string, name: string, commands: readonly CommandDescription[]): string {
  return `${call}
        if [[ $state == first ]]; then
          names=(${names(commands)})
          _describe -t commands command names && ret=0
        elif [[ $state == inside ]]; then
          command="${name} $words[1]" state=
          case $command in
${commands.map(commandCase).join('\n')}
          esac
        fi`;
}

/** Completes the words behind `--` as if they stood alone. */
function behindDashes(call: string, operands: CommandDescription['operands']): string {
  if (operands !== 'files-and-command-line') return call;
  return `at=\${words[(i)--]}
        if (( at < CURRENT )); then
          shift $at words; (( CURRENT -= at )); _normal && ret=0
        else
          ${call}
        fi`;
}

function optionSpecifications(option: OptionDescription): string[] {
  const { name, short, summary, isRepeatable, form, value, offers } = option;
  const text = summary === '' ? '' : `[${summary.replace(/[[\]\\]/g, '\\$&')}]`;
  const spellings = short === undefined ? [`--${name}`] : [`-${short}`, `--${name}`];
  const before = isRepeatable ? '*' : spellings.length > 1 ? `(${spellings.join(' ')})` : '';
  return spellings.map((spelling) => {
    if (form === null) return quote(`${before}${spelling}${text}`);
    const attached = form === 'attached';
    const separator = attached ? '=-' : spelling.startsWith('--') ? '=' : '+';
    const values = `${attached ? '::' : ':'}${value}:${action(offers)}`;
    return quote(`${before}${spelling}${separator}${text}${values}`);
  });
}

function action(offers: OptionDescription['offers']): string {
  if (offers === null) return ' ';
  if (offers === 'file') return '_files';
  if (offers === 'job') return '_gpu-owner-jobs';
  return offers === 'directory' ? '_files -/' : list(offers);
}

function furtherCases({ name, operands }: CommandDescription): string[] {
  if (operands === null || typeof operands === 'string') return [];
  return Object.entries(operands.after ?? {}).map(([word, words]) => {
    if (words === 'file') return `      ${quote(`${name}:${word}`)}) _files && ret=0 ;;`;
    const begun = words.filter((each) => each.endsWith('='));
    const whole = words.filter((each) => !each.endsWith('='));
    return `      ${quote(`${name}:${word}`)}) compadd -S '' -- ${begun.join(' ')} && ret=0; compadd -- ${whole.join(' ')} && ret=0 ;;`;
  });
}

function list(words: readonly string[]): string {
  return `(${words.map((word) => word.replace(/[:\s()\\]/g, '\\$&')).join(' ')})`;
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

const TEMPLATE = `#compdef gpu-owner
# Completion of gpu-owner for zsh. Made by \`gpu-owner completion zsh\`.

# Numbers and names of the user's jobs.
_gpu-owner-jobs() {
  compadd -- \${(f)"$(_call_program jobs gpu-owner jobs --words 2>/dev/null)"}
}

_gpu-owner() {
  local curcontext=$curcontext state command at ret=1
  local -a line names
  local -A opt_args
  _arguments -C '(- *)'{-h,--help}'[show help]' '(- *)--version[show the version]' '1: :->command' '*:: :->rest' && ret=0
  if [[ $state == command ]]; then
    names=(@COMMANDS@)
    _describe -t commands command names && ret=0
  elif [[ $state == rest ]]; then
    command=$words[1] state=
    curcontext=\${curcontext%:*:*}:gpu-owner-$command:
    case $command in
@CASES@
    esac
    [[ $state == further ]] && case $command:$line[1] in
@AFTER@
    esac
  fi
  return ret
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _gpu-owner "$@"
elif (( $+functions[compdef] )); then
  compdef _gpu-owner gpu-owner
else
  print -u2 'gpu-owner: its completion needs zsh’s own: autoload -Uz compinit && compinit'
fi`;
