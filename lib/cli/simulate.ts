import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { systemError } from '../platform/index.ts';
import { SIZES } from './claim-options.ts';
import type { Command, Operands } from './command.ts';
import type { Option, OptionTable } from './options.ts';

/** Becomes the tool that comes with the simulated driver: it explains itself, and signals reach it. */
function simulate(args: readonly string[]): void {
  const path = nativeFile('gpu-owner-simulator');
  // Other commands call it --simulate.
  const words = args.map((arg) => arg.replace(/^--simulate(?==|$)/, '--machine'));
  const error = native().processExec(path, ['gpu-owner simulate', ...words], 0, [], 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${path} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

/** Options and operands as the native tool's help has them, so that nothing has to be repeated here. */
function describe(): { options: OptionTable; operands: Operands } {
  const { spawnSync } = process.getBuiltinModule('node:child_process'); // only completion asks
  const { stdout: help, error } = spawnSync(nativeFile('gpu-owner-simulator'), ['--help'], {
    encoding: 'utf8',
  });
  if (error) throw new GPUOwnerError('ERR_INTERNAL', `${error.message}. Is the package complete?`);
  const options: Record<string, Option> = {};
  for (const [, name = '', value] of help.matchAll(/--([a-z]+)(?: ([A-Z]+))?/g)) {
    if (options[name]?.value === undefined)
      options[name] = { help: '', ...VALUES[name], ...(value && { value }) };
  }
  const commands = help.slice(help.indexOf('\nCommands:'), help.indexOf('\nKeys of'));
  const first = [...commands.matchAll(/^ {2}([a-z]+)\b/gm)].map(([, name]) => name as string);
  return { options, operands: { first, after: { set: settings(help) } } };
}

const VALUES: Readonly<Record<string, Pick<Option, 'candidates'>>> = {
  machine: { candidates: 'machine' },
  memory: { candidates: SIZES },
};

/** 'key=on|off' is two words, 'key=WATTS' the beginning of one. */
function settings(help: string): string[] {
  const keys = help.slice(help.indexOf('\nKeys of'), help.indexOf('\nCalls:'));
  const words = [...keys.matchAll(/(?<=\s)([a-z][a-z-]*)=(\S+)/g)].flatMap(([, key, values = '']) => [
    `${key}=`,
    ...values
      .split('|')
      .filter((value) => /^[a-z-]+$/.test(value))
      .map((value) => `${key}=${value}`),
  ]);
  return [...new Set(words)];
}

export const COMMAND: Command = { exec: simulate, describe };
