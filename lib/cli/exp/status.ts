import { failedTasks, overview } from '../../experiments/index.ts';
import { parse, refuseWords } from '../arguments.ts';
import type { Command } from '../command.ts';
import { EVERY_HELP } from '../help.ts';
import { isTerminal, print } from '../output.ts';
import { CLEAR, untilNext, WATCH, watchInterval, withWatchOption } from '../watching.ts';
import { projectOf, QUEUE, QUEUE_HELP, sameQueue, withQueue } from './queue-options.ts';
import { experimentJSON } from './status-json.ts';
import { statusPage } from './status-page.ts';

const HELP = `Usage: gpu-owner exp status [OPTIONS]

Shows how an experiment stands: how many tasks are done, which worker runs what
since when, what has failed, who writes the tables, whether it is paused.

  --json                    { project, queue, total, counts, progress, manager,
                            pause, nextTime, running, failures, withoutResult };
                            times are ISO 8601, what is not known or not so is
                            null
  --watch[=DURATION]        again and again, every second or as said
${QUEUE_HELP}
${EVERY_HELP}`;

const OPTIONS = {
  ...QUEUE,
  json: { type: 'boolean' },
  ...WATCH,
} as const;

const MOST_FAILURES = 20;

async function status(args: readonly string[]): Promise<void> {
  const { values, positionals } = parse(withWatchOption(args), OPTIONS);
  if (values.help) return print(HELP);
  refuseWords(positionals);
  const interval = watchInterval(values);
  await withQueue(
    values,
    async (queue) => {
      for (;;) {
        const now = await overview(queue);
        const failures = now.counts.failed === 0 ? [] : await failedTasks(queue, MOST_FAILURES);
        const withoutResult = await queue.withoutResult();
        if (values.json) {
          const json = experimentJSON(projectOf(values), queue.url, now, { failures, withoutResult });
          print(JSON.stringify(json, null, interval === null ? 2 : 0));
        } else {
          const width = Number(process.env.COLUMNS) || 80;
          const page = statusPage(
            now,
            { failures, withoutResult },
            { width, now: Date.now(), options: sameQueue(values) },
          );
          print(`${interval !== null && isTerminal(1) ? CLEAR : ''}${page}`);
        }
        if (interval === null) return;
        await untilNext(interval);
      }
    },
    true,
  );
}

export const COMMAND: Command = { run: status, help: HELP, options: OPTIONS };
