import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GPUOwnerError } from '../errors.ts';
import { onWarning } from '../platform/index.ts';
import { runCommand } from './command.ts';
import { COMMANDS } from './commands.ts';
import { EXIT_CODES } from './exit-codes.ts';
import { print, say, write } from './output.ts';

async function main(args: readonly string[]): Promise<void> {
  onWarning((message) => say(`warning: ${message}`));
  if (args[0] === '--version') return print(version());
  const help = async () => (await import('./help.ts')).mainHelp(COMMANDS);
  const isNamed = await runCommand({ called: 'gpu-owner', commands: COMMANDS, help, print }, args);
  if (!isNamed) process.exitCode = EXIT_CODES.ERR_INVALID_ARGUMENT;
}

function version(): string {
  const path = join(import.meta.dirname, '..', 'package.json');
  return (JSON.parse(readFileSync(path, 'utf8')) as { version: string }).version;
}

/** The error for a user, if it is one. */
function asOurs(error: unknown): GPUOwnerError | null {
  if (error instanceof GPUOwnerError) return error;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (code !== 'ENOENT' || syscall !== 'uv_cwd') return null;
  return new GPUOwnerError(
    'ERR_INVALID_ARGUMENT',
    'the current directory has been removed: cd to another one, or name the project, --project /A/DIRECTORY',
  );
}

main(process.argv.slice(2)).catch((error: unknown) => {
  const ours = asOurs(error);
  if (ours === null) throw error;
  const { code, message } = ours;
  // For programs that start the command: several codes share an exit code.
  if (process.env.GPU_OWNER_ERRORS === 'json') write(2, `${JSON.stringify({ error: { code, message } })}\n`);
  else say(message);
  process.exit(EXIT_CODES[code]);
});
