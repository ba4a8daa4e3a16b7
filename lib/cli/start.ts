// The entry of the command: runs command.cjs, which lies beside it, or another bundle that has more, or less.
import { runBundle } from '../bundle.ts';

// Commands that claim must be quick, and `--version` needs little; some must know every command, or belong to sweeps. Others needn't pay
// for their size.
const BUNDLES: Record<string, string> = {
  __proto__: null as never, // an argument may be called 'constructor'
  run: 'claim',
  hold: 'claim',
  submit: 'claim',
  '--version': 'claim',
  '--help': 'claim',
  exp: 'experiments',
  help: 'experiments',
};
/** The function of this file, or of the launcher: both find the same packages. */
declare const require: NodeJS.Require;

const [, , name = '', ...words] = process.argv;
// Completion loads the command that is named: `__complete SHELL -- exp`.
const loaded = name === '__complete' && ['exp', 'help', 'mcp'].includes(words[2] ?? '') ? words[2] : name;
// `run --on` and `submit --on` are about another machine. The user's command may have such a word, too: it costs it some ms.
// A job that `submit --after` names may be there, too.
const isElsewhere =
  (name === 'run' || name === 'submit') && words.some((word) => /^--(?:on|after|after-ok)(?:=|$)/.test(word));
runBundle((isElsewhere ? null : BUNDLES[loaded ?? '']) ?? 'command', import.meta.dirname, require);
