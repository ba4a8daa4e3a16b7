import { LONGEST_TIMER } from '../../clock.ts';
import { failedTasks, overview } from '../../experiments/manager/overview.ts';
import { parseDuration } from '../../quantities.ts';
import { parse, refuseWords } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { isTerminal, print } from '../output.ts';
import { projectOf, QUEUE, QUEUE_HELP, sameQueue, withQueue } from './queue-options.ts';
import { experimentJSON } from './status-json.ts';
import { statusPage } from './status-page.ts';

const HELP = `Usage: gpu-owner exp status [OPTIONS]

Shows how an experiment stands: how many tasks are done, which worker runs what
since when, what has failed, who writes the tables, whether it is paused.

  --json                    { project, queue, total, counts, progress, manager,
                            pause, nextTime, running, failures }; times are ISO
                            8601, what is not known or not so is null
  --watch[=DURATION]        again and again, every second or as said
${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = {
  ...QUEUE,
  json: { type: 'boolean' },
  watch: { type: 'boolean' },
  'watch-every': { type: 'string' },
} as const;

const CLEAR = '\u001b[H\u001b[2J';
const MOST_FAILURES = 20;
const SHORTEST = 100;

async function status(args: readonly string[]): Promise<void> {
  const own = args.map((arg) => (arg.startsWith('--watch=') ? `--watch-every=${arg.slice(8)}` : arg));
  const { values, positionals } = parse(own, OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const every = values['watch-every'];
  const watching = values.watch === true || every !== undefined;
  const interval = Math.min(Math.max(SHORTEST, parseDuration(every ?? 1_000, '--watch')), LONGEST_TIMER);
  await withQueue(values, async (queue) => {
    for (;;) {
      const now = await overview(queue);
      const failures = now.counts.failed === 0 ? [] : await failedTasks(queue, MOST_FAILURES);
      if (values.json) {
        const json = experimentJSON(projectOf(values), queue.url, now, failures);
        print(JSON.stringify(json, null, watching ? 0 : 2));
      } else {
        const width = Number(process.env.COLUMNS) || 80;
        const page = statusPage(now, failures, { width, now: Date.now(), options: sameQueue(values) });
        print(`${watching && isTerminal(1) ? CLEAR : ''}${page}`);
      }
      if (!watching) return;
      await new Promise((resolve) => setTimeout(resolve, interval));
    }
  });
}

export const COMMAND: Command = { run: status, help: HELP, options: OPTIONS };
