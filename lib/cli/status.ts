import { checkOptions, discover, type GPUStatus, runAsync } from '../claims/index.ts';
import { CRITERIA, claimOptions, NAMES, parse, refuseWords } from './arguments.ts';
import type { Command } from './command.ts';
import { COMMON_HELP, CRITERIA_HELP } from './help.ts';
import { isTerminal, print } from './output.ts';
import { gpuJSON } from './status-json.ts';
import { statusTable } from './status-table.ts';
import { CLEAR, untilNext, WATCH, watchInterval, withWatchOption } from './watching.ts';

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
  ...WATCH,
} as const;

async function status(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(withWatchOption(args), OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const { request, configuration } = checkOptions(claimOptions(values), [], NAMES);
  const interval = watchInterval(values);
  const show = async (prefix: string) => {
    const gpus = await runAsync(discover(request, configuration.lockDirectory, 'machine'));
    print(
      prefix +
        (values.json ? JSON.stringify(gpus.map(gpuJSON), null, interval === null ? 2 : 0) : table(gpus)),
    );
  };
  if (interval === null) return show('');
  for (;;) {
    await show(
      isTerminal(1) && !values.json ? `${CLEAR}gpu-owner status  ${new Date().toLocaleTimeString()}\n` : '',
    );
    await untilNext(interval);
  }
}

export const COMMAND: Command = { run: status, help: HELP, options: OPTIONS };

function table(gpus: readonly GPUStatus[]): string {
  if (gpus.length === 0) return 'The driver reports no GPU.';
  const colour = isTerminal(1) && !process.env.NO_COLOR && process.env.TERM !== 'dumb';
  return statusTable(gpus, { width: Number(process.env.COLUMNS) || 80, colour });
}
