import { Enforcer } from '../enforce/index.ts';
import { formatDuration, TIMEOUTS } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { print, say } from './output.ts';

const GROUPS = [
  {
    options: {
      'dry-run': { help: 'print what would be done; the default until the configuration has `enforce`' },
    },
  },
] as const satisfies readonly OptionGroup[];

async function enforce(parsed: Parsed<typeof GROUPS>): Promise<void> {
  rejectOperands(parsed);
  const { values } = parsed;
  const enforcer = new Enforcer(values['dry-run'] === true, print);
  const controller = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => controller.abort());
  const every = `looking every ${formatDuration(TIMEOUTS.enforceLook)}`;
  if (!enforcer.isDryRun) say(every);
  else if (!enforcer.hasRules)
    say(`${every}; this is a dry run, as the machine's configuration has no \`enforce\``);
  else say(`${every}; this is a dry run`);
  await enforcer.run(controller.signal);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Ends programs that compute on a GPU which another user has leased, or without any claim if the configuration has \`enforce: { claims: required }\`. It looks every 30 s, warns the user on the terminals and by notifyCommand, sends SIGTERM after a grace, and SIGKILL 30 s later. Only root may run it. It prints a line for each action.`,
  groups: GROUPS,
  run: enforce,
};
