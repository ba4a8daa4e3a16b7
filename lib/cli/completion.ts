import { GPUOwnerError } from '../errors.ts';
import { closest, showValue } from '../platform/index.ts';
import { parse } from './arguments.ts';
import type { Command } from './command.ts';
import { bash } from './completion/bash.ts';
import { describe, type Program } from './completion/description.ts';
import { fish } from './completion/fish.ts';
import { zsh } from './completion/zsh.ts';
import { EVERY_HELP } from './help.ts';
import { print } from './output.ts';

const SHELLS: Readonly<Record<string, (program: Program) => string>> = { bash, zsh, fish };

const HELP = `Usage: gpu-owner completion bash|zsh|fish

Prints a script that makes the shell complete commands, options, values, and
the command after \`gpu-owner run\`. To have it in this shell:

  source <(gpu-owner completion bash)      bash, in ~/.bashrc for all shells
  source <(gpu-owner completion zsh)       zsh, in ~/.zshrc after compinit
  gpu-owner completion fish | source       fish

Options:
${EVERY_HELP}`;

const OPTIONS = {} as const;

async function completion(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(args, OPTIONS);
  if (values.help) return print(HELP);
  const [shell, ...more] = positionals;
  const names = Object.keys(SHELLS);
  const script = shell !== undefined && Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined;
  if (script === undefined || more.length > 0) {
    const meant = shell === undefined ? null : closest(shell, names);
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `${shell === undefined ? 'which shell?' : `no completion for ${showValue([shell, ...more].join(' '))};`} ` +
        (meant && more.length === 0 ? `did you mean '${meant}'?` : `right are ${names.join(', ')}`),
    );
  }
  print(script(await describe()));
}

export const COMMAND: Command = {
  run: completion,
  help: HELP,
  options: OPTIONS,
  operands: { first: Object.keys(SHELLS) },
};
