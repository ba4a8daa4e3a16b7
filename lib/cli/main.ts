import { GPUOwnerError } from '../errors.ts';
import { onWarning } from '../platform/index.ts';
import { COMMANDS, findCommand } from './commands.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { print, say, write } from './output.ts';

async function main([name, ...args]: readonly string[]): Promise<void> {
  onWarning((message) => say(`warning: ${message}`));
  if (name === 'help' && args[0] !== undefined && args[0] !== 'help') return explain(args[0], args[1]);
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    print((await import('./help.ts')).MAIN_HELP);
    if (name === undefined) process.exitCode = EXIT_CODES.ERR_INVALID_ARGUMENT;
    return;
  }
  if (name === '--version') return print((await import('./version.ts')).version());
  await (await findCommand(COMMANDS, name, 'gpu-owner')).run(args);
}

/** `help NAME`, or `help GROUP NAME`. */
async function explain(name: string, inside: string | undefined): Promise<void> {
  const command = await findCommand(COMMANDS, name, 'gpu-owner');
  await command.run(command.commands && inside !== undefined ? [inside, '--help'] : ['--help']);
}

main(process.argv.slice(2)).catch((error: unknown) => {
  if (!(error instanceof GPUOwnerError)) throw error;
  const { code, message } = error;
  // For programs that start the command: several codes share an exit code.
  if (process.env.GPU_OWNER_ERRORS === 'json') write(2, `${JSON.stringify({ error: { code, message } })}\n`);
  else say(message);
  process.exit(EXIT_CODES[code]);
});
