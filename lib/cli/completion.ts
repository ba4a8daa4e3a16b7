import { nativeFile } from '../native.ts';
import { closest, schema, showValue } from '../platform/index.ts';
import type { Commands, PlainCommand } from './command.ts';
import { bash } from './completion/bash.ts';
import { describe, type ProgramDescription } from './completion/description.ts';
import { fish } from './completion/fish.ts';
import { zsh } from './completion/zsh.ts';
import { usage } from './options.ts';
import { print } from './output.ts';

const SHELLS: Readonly<Record<string, (program: ProgramDescription) => string>> = { bash, zsh, fish };

/** The command that makes scripts for all commands. */
export function completionOf(commands: Commands): PlainCommand {
  return {
    usage: 'bash|zsh|fish',
    about: `Prints a script with which a shell completes commands, options, values, and the command after \`gpu-owner run\`. To use it:

  source <(gpu-owner completion bash)      bash, in ~/.bashrc for all shells
  source <(gpu-owner completion zsh)       zsh, in ~/.zshrc after compinit
  gpu-owner completion fish | source       fish`,
    groups: [{ title: 'Options:', options: {} }],
    operands: { first: Object.keys(SHELLS) },
    run: async ({ positionals }) => print(scriptFor(positionals)(await describe(commands, machines()))),
  };
}

function scriptFor([shell, ...more]: readonly string[]): (program: ProgramDescription) => string {
  const names = Object.keys(SHELLS);
  const script = shell !== undefined && Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined;
  if (script !== undefined && more.length === 0) return script;
  const meant = shell === undefined ? null : closest(shell, names);
  throw usage(
    `${shell === undefined ? 'which shell?' : `no completion for ${showValue([shell, ...more].join(' '))};`} ` +
      (meant && more.length === 0 ? `did you mean '${meant}'?` : `use ${names.join(', ')}`),
  );
}

const NAMED = schema.jsonOf(schema.listOf(schema.record({ name: schema.text })));

/** Names of simulated machines, from the tool that has them; asked when the script is made, not when it is used. */
function machines(): string[] {
  const { spawnSync } = process.getBuiltinModule('node:child_process');
  const args = ['machines', '--json'];
  const { stdout, status } = spawnSync(nativeFile('gpu-owner-simulator'), args, { encoding: 'utf8' });
  return status === 0 ? NAMED(stdout, '').map(({ name }) => name) : [];
}
