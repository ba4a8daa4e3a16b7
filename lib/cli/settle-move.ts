import { JobStore, type MoveAction, parseMove, settleMove } from '../jobs/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, usage } from './command-line.ts';
import { print } from './output.ts';

const GROUPS = [{ options: {} }] as const satisfies readonly OptionGroup[];

async function settle({ positionals: [word = '', ...words] }: Parsed<typeof GROUPS>): Promise<void> {
  print(JSON.stringify([await settleMove(JobStore.open(), parseMove(word).key, actionOf(words))]));
}

function actionOf([name, key]: readonly string[]): MoveAction {
  if (name === 'cancel' && key !== undefined) return { cancel: parseMove(key).key };
  if (name === 'confirm' || name === 'find') return name;
  throw usage('settle-move is for gpu-owner itself');
}

export const COMMAND: Command = {
  usage: 'KEY find|confirm|cancel KEY',
  about: 'Says what has become of a job in one of its places, or decides it.',
  groups: GROUPS,
  run: settle,
};
