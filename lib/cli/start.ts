// The entry of the command: runs command.cjs, which lies beside it, or for experiments the larger experiments.cjs, which has
// everything.
import { runBundle } from '../bundle.ts';

// What claims must be quick; some must know every command, or are commands of experiments. Others needn't pay for their size.
const BUNDLES: Record<string, string> = {
  __proto__: null as never, // an argument may be called 'constructor'
  run: 'claim',
  hold: 'claim',
  exp: 'experiments',
  help: 'experiments',
  completion: 'experiments',
};
/** The function of this file, or of the launcher: both find the same packages. */
declare const require: NodeJS.Require;

runBundle(BUNDLES[process.argv[2] ?? ''] ?? 'command', import.meta.dirname, require);
