import { closest, showValue, usageError } from '../platform/index.ts';
import type { PlainCommand } from './command.ts';
import { print } from './output.ts';

/** Asks `gpu-owner __complete` for words, a line each with its description; the first line is an action: what they are. */
const SHELLS: Readonly<Record<string, string>> = {
  bash: `# Completion of gpu-owner for bash 4.2 or newer.
_gpu_owner() {
  local action word value name IFS=$' \\t\\n'
  mapfile -t COMPREPLY < <(command "\${COMP_WORDS[0]}" __complete bash -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  ((\${#COMPREPLY[@]})) || return 0
  read -r action word <<<"\${COMPREPLY[0]}"
  COMPREPLY=("\${COMPREPLY[@]:1}")
  case $action in
    file | directory)
      value=\${word#--*=}
      mapfile -t COMPREPLY < <(compgen -P "\${word%"$value"}" -A "$action" -- "$value")
      compopt -o filenames 2>/dev/null ;;
    open) compopt -o nospace 2>/dev/null ;;
    command) # the user's own, which begins at this word
      if declare -F _comp_command_offset >/dev/null; then _comp_command_offset "$word"; return; fi
      if declare -F _command_offset >/dev/null; then _command_offset "$word"; return; fi
      COMP_WORDS=("\${COMP_WORDS[@]:word}") COMP_CWORD=$((COMP_CWORD - word)) COMP_LINE=\${COMP_WORDS[*]} COMP_POINT=\${#COMP_LINE}
      name=\${COMP_WORDS[0]}
      if ((COMP_CWORD == 0)); then
        mapfile -t COMPREPLY < <(compgen -A command -- "$name" | sort -u)
        [[ $name != */* ]] || compopt -o filenames 2>/dev/null
      elif [[ $(complete -p -- "$name" 2>/dev/null || complete -p -- "\${name##*/}" 2>/dev/null) =~ ' -F '([^ ]+)' ' ]]; then
        "\${BASH_REMATCH[1]}" "$name" "\${COMP_WORDS[COMP_CWORD]}" "\${COMP_WORDS[COMP_CWORD - 1]}"
      else
        compopt -o bashdefault -o default 2>/dev/null
      fi
      return ;;
  esac
  COMPREPLY=("\${COMPREPLY[@]%%$'\\t'*}")
  # Where bash splits words at '=', only what follows it is replaced.
  [[ $COMP_WORDBREAKS != *=* || $word != *=* ]] || COMPREPLY=("\${COMPREPLY[@]#"\${word%%=*}="}")
}
complete -F _gpu_owner gpu-owner`,
  zsh: `#compdef gpu-owner
# Completion of gpu-owner for zsh.
_gpu-owner() {
  local -a lines
  lines=("\${(@f)$(_call_program words gpu-owner __complete zsh -- \${(q)\${(@Q)words[2,CURRENT-1]}} "\${(q)\${(Q)PREFIX}}" 2>/dev/null)}")
  local action=\${lines[1]%% *} word=\${lines[1]#* }
  lines=("\${(@)\${(@)lines[2,-1]//:/\\\\:}/$'\\t'/:}")
  case $action in
    file | directory)
      [[ $PREFIX == --*=* ]] && compset -P 1 '*='
      _files \${\${(M)action:#directory}:+-/} ;;
    command) shift $word words; (( CURRENT -= word )); _normal ;;
    open) _describe -t words word lines -S '' ;;
    words) _describe -t words word lines ;;
  esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _gpu-owner "$@"
elif (( $+functions[compdef] )); then
  compdef _gpu-owner gpu-owner
else
  print -u2 'gpu-owner: its completion needs zsh’s own: autoload -Uz compinit && compinit'
fi`,
  fish: `# Completion of gpu-owner for fish 3.1 or newer.
function __gpu_owner_words
    set -l words (commandline -opc) (commandline -ct)
    set -l lines (command gpu-owner __complete fish -- $words[2..-1] 2>/dev/null)
    set -q lines[1]; or return
    set -l action (string split ' ' -- $lines[1])
    set -l prefix (string match -r -- '^--[^=]*=' $words[-1])
    switch $action[1]
        case file
            string replace -r -- '^' "$prefix" (complete -C "'' "(string replace -- "$prefix" '' $words[-1]))
        case directory
            string replace -r -- '^' "$prefix" (__fish_complete_directories (string replace -- "$prefix" '' $words[-1]))
        case command
            set -e words[1..$action[2]] words[-1]
            set -l line (string escape -- $words) (commandline -ct)
            complete -C "$line"
        case '*'
            string join -- \\n $lines[2..-1]
    end
end
complete -c gpu-owner -f -a '(__gpu_owner_words)'`,
};

/** The command that prints a shell's script. */
export const COMMAND: PlainCommand = {
  usage: 'bash|zsh|fish',
  about: `Prints a script with which a shell completes commands, options, values, and the command after \`gpu-owner run\`. To use it:

  source <(gpu-owner completion bash)      bash, in ~/.bashrc for all shells
  source <(gpu-owner completion zsh)       zsh, in ~/.zshrc after compinit
  gpu-owner completion fish | source       fish`,
  groups: [{ title: 'Options:', options: {} }],
  operands: { first: Object.keys(SHELLS) },
  run: ({ positionals }) => print(scriptFor(positionals)),
};

function scriptFor([shell, ...more]: readonly string[]): string {
  const names = Object.keys(SHELLS);
  const script = shell !== undefined && Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined;
  if (script !== undefined && more.length === 0) return script;
  const meant = shell === undefined ? null : closest(shell, names);
  throw usageError(
    `${shell === undefined ? 'which shell?' : `no completion for ${showValue([shell, ...more].join(' '))};`} ` +
      (meant && more.length === 0 ? `did you mean '${meant}'?` : `use ${names.join(', ')}`),
  );
}
