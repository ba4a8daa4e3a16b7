import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stateDirectory } from '../jobs/index.ts';
import { removeOlder, shellWords } from '../platform/index.ts';
import type { Command } from './command.ts';
import { print } from './output.ts';

/** A file that is still there then has no reader any more, in ms. */
const MAX_AGE_MS = 600_000;

/** Keeps variables in a file that only their user can read, for the command that comes over the next connection. */
function keep({ positionals: names }: { positionals: string[] }): void {
  const place = join(stateDirectory(), 'gpu-owner', 'environments');
  mkdirSync(place, { recursive: true, mode: 0o700 });
  removeOlder(place, MAX_AGE_MS);
  const path = join(place, process.getBuiltinModule('node:crypto').randomBytes(16).toString('hex'));
  const lines = names.map((name) => `export ${name}=${shellWords([process.env[name] ?? ''])}\n`);
  writeFileSync(path, lines.join(''), { mode: 0o600, flag: 'wx' });
  print(path);
}

export const COMMAND: Command = {
  usage: 'NAME...',
  about: 'Keeps variables of the environment in a file, and prints its path.',
  groups: [{ options: {} }],
  run: keep,
};
