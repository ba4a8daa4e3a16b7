import { discover, type GPUStatus } from '../claims/discovery.ts';
import { runAsync } from '../claims/effects.ts';
import { checkOptions } from '../claims/options.ts';
import { LONGEST_TIMER } from '../clock.ts';
import { parseDuration } from '../quantities.ts';
import { CRITERIA, claimOptions, NAMES, parse, refuseWords } from './arguments.ts';
import type { Command } from './command.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { isTerminal, print } from './output.ts';
import { gpuJSON } from './status-json.ts';
import { statusTable } from './status-table.ts';

const HELP = `Usage: gpu-owner status [OPTIONS]

Shows every GPU: how much of it is used, and whether it is free, leased (and by
whom), busy (used without a claim) or unavailable. It takes nothing and disturbs
nobody's claim.

  --json                    an array with a member per GPU; null is unknown
  --watch[=DURATION]        again and again, every second or as said
${COMMON_HELP}

${CRITERIA_HELP}`;

const OPTIONS = {
  ...CRITERIA,
  json: { type: 'boolean' },
  watch: { type: 'boolean' },
  'watch-every': { type: 'string' },
} as const;

const CLEAR = '\u001b[H\u001b[2J';
const SHORTEST = 100;

async function status(args: readonly string[]): Promise<void> {
  const own = args.map((arg) => (arg.startsWith('--watch=') ? `--watch-every=${arg.slice(8)}` : arg));
  const { values, positionals } = parse(own, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const { request, configuration } = checkOptions(claimOptions(values), [], NAMES);
  const every = values['watch-every'];
  const watching = values.watch === true || every !== undefined;
  const show = async (prefix: string) => {
    const gpus = await runAsync(discover(request, configuration.lockDirectory, 'machine'));
    print(prefix + (values.json ? JSON.stringify(gpus.map(gpuJSON), null, watching ? 0 : 2) : table(gpus)));
  };
  if (!watching) return show('');
  const wanted = parseDuration(every ?? 1000, '--watch');
  const pause = Math.min(Math.max(wanted, SHORTEST), LONGEST_TIMER);
  for (;;) {
    await show(
      isTerminal(1) && !values.json ? `${CLEAR}gpu-owner status  ${new Date().toLocaleTimeString()}\n` : '',
    );
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

export const COMMAND: Command = { run: status, help: HELP, options: OPTIONS };

function table(gpus: readonly GPUStatus[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU.';
  const colour = isTerminal(1) && !process.env.NO_COLOR && process.env.TERM !== 'dumb';
  return statusTable(gpus, { width: Number(process.env.COLUMNS) || 80, colour });
}
