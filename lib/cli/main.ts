import { GPUOwnerError } from '../errors.ts';
import { closest, showValue } from '../text.ts';
import { onWarning } from '../warnings.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { print, say } from './output.ts';

type Command = (args: readonly string[]) => Promise<void>;

/** Loaded when they are called for. */
const COMMANDS: Record<string, () => Promise<Command>> = {
  run: async () => (await import('./run.ts')).run,
  hold: async () => (await import('./hold.ts')).hold,
  status: async () => (await import('./status.ts')).status,
  find: async () => (await import('./find.ts')).find,
  doctor: async () => (await import('./doctor.ts')).doctor,
  simulate: async () => (await import('./simulate.ts')).simulate,
};

async function main([name, ...args]: readonly string[]): Promise<void> {
  onWarning((message) => say(`warning: ${message}`));
  if (name === 'help' && args[0] !== undefined && args[0] !== 'help') return main([args[0], '--help']);
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    print((await import('./help.ts')).MAIN_HELP);
    if (name === undefined) process.exitCode = EXIT_CODES.ERR_INVALID_ARGUMENT;
    return;
  }
  if (name === '--version') return print((await import('./version.ts')).version());
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (load === undefined) {
    const meant = closest(name, Object.keys(COMMANDS));
    throw new GPUOwnerError(
      'ERR_INVALID_ARGUMENT',
      `there is no command ${showValue(name)}${meant ? `; did you mean '${meant}'?` : '; see gpu-owner --help'}`,
    );
  }
  await (await load())(args);
}

main(process.argv.slice(2)).catch((error: unknown) => {
  if (!(error instanceof GPUOwnerError)) throw error;
  say(error.message);
  process.exit(EXIT_CODES[error.code]);
});
