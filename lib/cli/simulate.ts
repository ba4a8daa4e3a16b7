import { GPUOwnerError } from '../errors.ts';
import { native, nativeFile } from '../native.ts';
import { systemError } from '../platform/index.ts';
import type { Command } from './command.ts';

/** Becomes the tool that comes with the simulated driver: it explains itself, and signals reach it. */
async function simulate(args: readonly string[]): Promise<void> {
  const path = nativeFile('gpu-owner-simulator');
  // Other commands call it --simulate.
  const words = args.map((arg) => arg.replace(/^--simulate(?==|$)/, '--machine'));
  const error = native().processExec(path, ['gpu-owner simulate', ...words], 0, [], 0);
  throw new GPUOwnerError(
    'ERR_INTERNAL',
    `${path} can't be started: ${systemError(-error)}. Is the package complete?`,
  );
}

/** What the native tool says about itself, so that nothing has to be repeated here. */
function toolHelp(): string {
  const { spawnSync } = process.getBuiltinModule('node:child_process'); // only completion asks
  const { stdout, error } = spawnSync(nativeFile('gpu-owner-simulator'), ['--help'], { encoding: 'utf8' });
  if (error) throw new GPUOwnerError('ERR_INTERNAL', `${error.message}. Is the package complete?`);
  return stdout;
}

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

export const COMMAND: Command = {
  run: simulate,
  get help() {
    return toolHelp();
  },
  get options() {
    const words = [...toolHelp().matchAll(/--([a-z]+)( [A-Z]+)?/g)];
    const valued = new Set(words.filter(([, , value]) => value !== undefined).map(([, name]) => name));
    const table = words.map(([, name]) => [name, { type: valued.has(name) ? 'string' : 'boolean' } as const]);
    return Object.fromEntries(table);
  },
  get operands() {
    const help = toolHelp();
    const commands = help.slice(help.indexOf('\nCommands:'), help.indexOf('\nKeys of'));
    const first = [...commands.matchAll(/^ {2}([a-z]+)\b/gm)].map(([, name]) => name as string);
    return { first, after: { set: settings(help) } };
  },
};
