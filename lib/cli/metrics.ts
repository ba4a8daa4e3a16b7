import { checkOptions } from '../claims/index.ts';
import { parseEndpoint } from '../platform/index.ts';
import {
  exposition,
  type Family,
  type MetricSample,
  serveMetrics,
  writeTextFile,
} from '../prometheus/index.ts';
import { machineFamilies } from '../views/index.ts';
import type { Command } from './command.ts';
import { listenOption, type OptionGroup, type Parsed, rejectOperands, usage } from './command-line.ts';
import { askEach, HOSTS, isForHosts } from './hosts.ts';
import { print, say, write } from './output.ts';

const HOSTS_HELP =
  'ask other machines over ssh, and add the label `host`: names as in `ssh NAME` (a,b), or all that the configuration lists';

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
      json: { help: 'print an array of { name, type, help, samples: [{ labels, value }] }' },
      ...HOSTS,
      hosts: { ...HOSTS.hosts, value: 'LIST|all', help: HOSTS_HELP },
    },
  },
] as const satisfies readonly OptionGroup[];

async function metrics(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed, listenOption);
  const { listen, output, json } = values;
  if (listen !== undefined && output !== undefined)
    throw usage("--listen and --output can't be combined: start the command twice");
  if (json && (listen !== undefined || output !== undefined))
    throw usage("--json can't be combined with --listen and --output: leave them out");
  if (output === '') throw usage('--output needs the name of a file');
  const { request } = checkOptions({});
  const publish = (families: readonly Family[]) => {
    const text = json ? `${JSON.stringify(families)}\n` : exposition(families);
    if (output === undefined || output === '-') write(1, text);
    else writeTextFile(String(output), text);
  };
  if (isForHosts(values)) {
    if (listen !== undefined)
      throw usage(
        "--listen can't be combined with --hosts: call it with --output from a timer, or serve metrics on each host",
      );
    return publish(await familiesOfHosts(parsed));
  }
  const collect = () => machineFamilies(request);
  if (listen !== undefined) {
    const endpoint = await parseEndpoint(String(listen), '--listen');
    const server = await serveMetrics(endpoint, collect);
    return print(server.url);
  }
  publish(await collect());
}

/** Metrics of all hosts, each with the label `host`, and whether it has answered. */
async function familiesOfHosts(parsed: Parsed<typeof GROUPS>): Promise<Family[]> {
  const answers = await askEach('metrics', parsed, 'metrics', ({ host, error }) => {
    if (error !== null) say(`${host}: ${error.message}`);
  });
  const up: Family = {
    name: 'gpu_owner_host_up',
    type: 'gauge',
    help: 'Whether the host has answered.',
    samples: answers.map(({ host, error }) => ({ labels: { host }, value: error === null ? 1 : 0 })),
  };
  const families = new Map<string, Family & { samples: MetricSample[] }>();
  for (const { host, records } of answers) {
    for (const family of records ?? []) {
      const all = families.get(family.name) ?? { ...family, samples: [] };
      families.set(family.name, all);
      for (const sample of family.samples)
        all.samples.push({ ...sample, labels: { host, ...sample.labels } });
    }
  }
  return [up, ...families.values()];
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Prints metrics of this machine for Prometheus: the state, memory, power and users of its GPUs, and the wait queue. It takes nothing and disturbs no claim. \`gpu-owner docs metrics\` lists the metrics.`,
  groups: GROUPS,
  run: metrics,
};
