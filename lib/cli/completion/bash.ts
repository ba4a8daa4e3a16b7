import {
  type CommandDescription,
  everyCommand,
  lastWord,
  type OptionDescription,
  type ProgramDescription,
} from './description.ts';

/** A script for bash 4.2 or newer; for the user's command it uses bash-completion where that is loaded. */
export function bash(program: ProgramDescription): string {
  const every = everyCommand(program);
  const options = new Map(every.flatMap((command) => command.options.map((option) => [option.name, option])));
  return TEMPLATE.replace('@COMMANDS@', () => program.commands.map(lastWord).join(' '))
    .replace('@TABLE@', () => every.map(table).join('\n'))
    .replace('@VALUES@', () => [...options.values()].flatMap(valueCase).join('\n'));
}

/** In place of words that may follow. */
const FILES = ':file';
const JOBS = ':jobs';

function spellings({ name, short }: OptionDescription): string[] {
  return [`--${name}`, ...(short === undefined ? [] : [`-${short}`])];
}

function table({ name, options, operands, commands }: CommandDescription): string {
  const valued = options.filter(({ form }) => form === 'next').flatMap(spellings);
  const offered = options.flatMap((option) => [
    ...spellings(option),
    ...(option.form === 'attached' ? [`--${option.name}=`] : []),
  ]);
  const lines = [`options=${quote(offered.join(' '))}`, `valued=${quote(valued.join(' '))}`];
  if (commands.length > 0) lines.push(`commands=${quote(commands.map(lastWord).join(' '))}`);
  if (operands === 'command-line') lines.push('runs=1');
  else if (operands === 'files-and-command-line') lines.push('runs=dashes');
  else if (operands === 'jobs') lines.push(`next=${JOBS}`);
  else if (operands !== null) {
    const cases = Object.entries({ "''": operands.first, ...operands.after });
    const next = (words: readonly string[] | 'file') => (words === 'file' ? FILES : words.join(' '));
    const texts = cases.map(([operand, words]) => `  ${operand}) next=${quote(next(words))} ;;`);
    lines.push('case $operand in', ...texts, '  *) next= ;;', 'esac');
  }
  return `    ${name.includes(' ') ? quote(name) : name})\n${lines.map((line) => `      ${line}\n`).join('')}      ;;`;
}

function valueCase(option: OptionDescription): string[] {
  const { offers } = option;
  if (offers === null) return [];
  const action =
    offers === 'directory' || offers === 'file'
      ? `paths='${offers}'`
      : offers === 'job'
        ? 'candidates=$(__gpu_owner_jobs)'
        : `candidates=${quote(offers.join(' '))}`;
  return [`    ${spellings(option).join(' | ')}) ${action} ;;`];
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

const TEMPLATE = `# Completion of gpu-owner for bash. Made by \`gpu-owner completion bash\`.

# Sets options, valued (those whose value is the next word), next (words that may follow, ${FILES} or ${JOBS}), commands (of a group) and runs
# (1: a command follows; dashes: files, and behind -- a command).
__gpu_owner_table() { # COMMAND
  case $1 in
@TABLE@
    *) return 1 ;;
  esac
}

# Sets candidates, or paths (directory or file), for the value of an option.
__gpu_owner_values() { # OPTION
  case $1 in
@VALUES@
  esac
}

# Numbers and names of the user's jobs.
__gpu_owner_jobs() {
  command "\${COMP_WORDS[0]}" jobs --words 2>/dev/null
}

# Completes the user's own command, which begins at this word, as if it stood alone.
__gpu_owner_command() { # POSITION
  local current=\${COMP_WORDS[COMP_CWORD]} name=\${COMP_WORDS[$1]}
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif ((COMP_CWORD == $1)); then
    mapfile -t COMPREPLY < <(compgen -A command -- "$current" | sort -u)
    [[ $current != */* ]] || compopt -o filenames 2>/dev/null
  elif [[ $(complete -p -- "$name" 2>/dev/null || complete -p -- "\${name##*/}" 2>/dev/null) =~ ' -F '([^ ]+)' ' ]]; then
    local completer=\${BASH_REMATCH[1]} previous=\${COMP_WORDS[COMP_CWORD - 1]}
    COMP_WORDS=("\${COMP_WORDS[@]:$1}")
    COMP_CWORD=$((COMP_CWORD - $1))
    COMP_LINE=\${COMP_WORDS[*]}
    COMP_POINT=\${#COMP_LINE}
    "$completer" "$name" "$current" "$previous"
  else
    compopt -o bashdefault -o default 2>/dev/null
  fi
}

_gpu_owner() {
  local IFS=$' \\t\\n'
  # Bash may have split words at '='. They are put together again; at[] has the position of each one's beginning.
  local -a words=() at=()
  local attach='' i word
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
    if ((i > 1)) && [[ $attach || $word == =* ]]; then
      words[\${#words[@]} - 1]+=$word
    else
      words+=("$word")
      at+=("$i")
    fi
    if [[ $word == = ]]; then attach=1; else attach=''; fi
  done
  local last=$((\${#words[@]} - 1))
  local current=\${words[last]} prefix=''
  local value=$current value_of='' operand='' ended=''
  local options='' valued='' next='' runs='' commands='' candidates='' paths=''
  local command=\${words[1]} first='@COMMANDS@' flags='--help --version' from=2
  COMPREPLY=()

  if ((last > 1)); then
    __gpu_owner_table "$command" || return 0
    first=$commands
    flags=$options
    if [[ $commands ]] && ((last > 2)); then
      command+=" \${words[2]}"
      first=''
      from=3
      __gpu_owner_table "$command" || return 0
    fi
  fi
  if [[ $first ]]; then
    candidates=$first
    [[ $current != -* ]] || candidates=$flags
  else
    for ((i = from; i < last; i++)); do
      word=\${words[i]}
      if [[ $word == -- && ! $ended ]]; then
        ended=1
      elif [[ $ended || $word != -?* ]]; then
        [[ ! $runs || ($runs == dashes && ! $ended) ]] || break
        operand=\${operand:-$word}
      elif [[ " $valued " == *" $word "* ]]; then
        ((++i < last)) || value_of=$word
      fi
    done
    if [[ $runs && ! $value_of ]] && [[ $ended || ($runs == 1 && ($i -lt $last || $current != -*)) ]]; then
      __gpu_owner_command "\${at[i]}"
      return
    fi
    __gpu_owner_table "$command"
    if [[ $value_of ]]; then
      __gpu_owner_values "$value_of"
    elif [[ ! $ended && $current == --*=* ]]; then
      prefix=\${current%%=*}=
      value=\${current#*=}
      __gpu_owner_values "\${current%%=*}"
    elif [[ ! $ended && $current == -* ]]; then
      candidates=$options
    elif [[ $runs == dashes || $next == ${FILES} ]]; then
      paths='file'
    elif [[ $next == ${JOBS} ]]; then
      candidates=$(__gpu_owner_jobs)
    else
      candidates=$next
      [[ $candidates || $current || $ended ]] || candidates=$options
    fi
  fi

  if [[ $paths ]]; then
    mapfile -t COMPREPLY < <(compgen -P "$prefix" -A "$paths" -- "$value")
    compopt -o filenames 2>/dev/null
  else
    mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$candidates" -- "$value")
    [[ \${#COMPREPLY[@]} != 1 || \${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
  fi
  # Where words are split at '=', only what stands behind it is replaced.
  if [[ $current == *=* && $COMP_WORDBREAKS == *=* && \${#COMPREPLY[@]} != 0 ]]; then
    COMPREPLY=("\${COMPREPLY[@]#"\${current%%=*}="}")
  fi
}

complete -F _gpu_owner gpu-owner`;
