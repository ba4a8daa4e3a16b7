import { checkOptions } from '../claims/index.ts';
import { parseEndpoint } from '../platform/index.ts';
import { exposition, serveMetrics, writeTextFile } from '../prometheus/index.ts';
import { machineFamilies } from '../views/index.ts';
import { claimOptions, LOCKS, NAMES } from './claim-options.ts';
import type { Command } from './command.ts';
import { type Parsed, refuseWords, usage } from './options.ts';
import { print, write } from './output.ts';

async function metrics(parsed: Parsed): Promise<void> {
  const { values } = parsed;
  refuseWords(parsed);
  const { listen, output } = values;
  if (listen !== undefined && output !== undefined)
    throw usage('--listen and --output contradict each other: start the command twice');
  if (output === '') throw usage('--output needs the name of a file');
  const { request } = checkOptions(claimOptions(values), [], NAMES);
  const collect = () => machineFamilies(request);
  if (listen !== undefined) {
    const endpoint = await parseEndpoint(String(listen), '--listen');
    const server = await serveMetrics(endpoint, collect, { option: '--listen', keepsProcess: true });
    return print(server.url);
  }
  const text = exposition(await collect());
  if (output === undefined || output === '-') write(1, text);
  else writeTextFile(String(output), text);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Prints metrics of this machine for Prometheus: the state, memory, power and users of its GPUs, and the wait queue. It takes nothing and disturbs no claim. docs/metrics.md lists the metrics.`,
  groups: [
    {
      options: {
        output: {
          short: 'o',
          value: 'FILE',
          help: "replace FILE in one step, for node_exporter's textfile collector",
          candidates: 'file',
        },
        listen: {
          value: '[HOST:]PORT',
          help: 'serve /metrics until a signal comes, and print its URL; to this machine only, unless HOST is given; 0 is a free port',
        },
        ...LOCKS,
      },
    },
  ],
  run: metrics,
};
