import { checkOptions } from '../claims/index.ts';
import { parseEndpoint, usageError } from '../platform/index.ts';
import { exposition, serveMetrics, writeTextFile } from '../prometheus/index.ts';
import { machineFamilies } from '../views/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { print, write } from './output.ts';

const GROUPS = [
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
    },
  },
] as const satisfies readonly OptionGroup[];

async function metrics(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { listen, output } = values;
  if (listen !== undefined && output !== undefined)
    throw usageError("--listen and --output can't be combined: start the command twice");
  if (output === '') throw usageError('--output needs the name of a file');
  const { request } = checkOptions({});
  const collect = () => machineFamilies(request);
  if (listen !== undefined) {
    const endpoint = await parseEndpoint(String(listen));
    const server = await serveMetrics(endpoint, collect);
    return print(server.url);
  }
  const text = exposition(await collect());
  if (output === undefined || output === '-') write(1, text);
  else writeTextFile(output, text);
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Prints metrics of this machine for Prometheus: the state, memory, power and users of its GPUs, and the wait queue. It takes nothing and disturbs no claim. \`gpu-owner docs metrics\` lists the metrics.`,
  groups: GROUPS,
  run: metrics,
};
