import { checkOptions } from '../claims/index.ts';
import { chooseHosts } from '../fleet/index.ts';
import {
  formatEndpoint,
  hostName,
  isLoopback,
  parseDuration,
  parseEndpoint,
  sanitize,
  showValue,
  usageError,
} from '../platform/index.ts';
import { FleetView, loadWeb, MachineView } from '../views/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands } from './command-line.ts';
import { HOSTS, isForHosts, timeoutOf, topWords } from './hosts.ts';
import { print } from './output.ts';

const DEFAULT_INTERVAL = '1s';
const MIN_INTERVAL_MS = 100;
/** Proxies close connections that are silent for longer. */
const MAX_INTERVAL_MS = 30_000;

const GROUPS = [
  {
    options: {
      listen: {
        value: '[HOST:]PORT',
        help: 'listen there (default: a free port, for this machine only); another HOST needs --token-file',
      },
      'token-file': {
        value: 'FILE',
        help: 'take the token from FILE (default: a new one at each start)',
        candidates: 'file',
      },
      'allow-host': {
        value: 'NAME',
        isRepeatable: true,
        help: 'answer also under this name, e.g. that of a proxy',
      },
      interval: {
        value: 'DURATION',
        help: `refresh every DURATION while the page is open (default ${DEFAULT_INTERVAL})`,
        candidates: ['1s', '2s', '5s'],
      },
      ...HOSTS,
    },
  },
] as const satisfies readonly OptionGroup[];

async function web(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const { request } = checkOptions({});
  const fleet = isForHosts(values) ? new FleetView(chooseHosts(values.hosts ?? '')) : null;
  const endpoint = await parseEndpoint(values.listen ?? '0');
  const interval = parseDuration(values.interval ?? DEFAULT_INTERVAL, '--interval');
  const file = values['token-file'];
  if (file === undefined && !isLoopback(endpoint.host)) {
    throw usageError(
      `--listen ${formatEndpoint(endpoint)} is for other machines: name a file with a token of your own, --token-file FILE`,
    );
  }
  const { newToken, pageURL, readTokenFile, serveWeb } = await loadWeb();
  const token = file === undefined ? newToken() : readTokenFile(file);
  const intervalMs = Math.min(Math.max(MIN_INTERVAL_MS, interval), MAX_INTERVAL_MS);
  const served = await serveWeb(fleet ?? new MachineView(request), {
    request: fleet === null ? request : null,
    endpoint,
    token,
    hosts: allowedHosts(values),
    intervalMs,
  });
  if (fleet !== null)
    void fleet.watch(topWords(values, intervalMs), timeoutOf(values) + intervalMs, () => {});
  // The output of a service is in a log.
  print(pageURL(served, file === undefined ? token : null));
  if (file !== undefined) print(`The token is in ${sanitize(file)}; the page asks for it.`);
  if (!isLoopback(served.host)) return;
  print(
    `To open it on another computer, run there: ssh -N -L ${served.port}:${formatEndpoint(served)} ${hostName()}`,
  );
}

function allowedHosts({ 'allow-host': names = [] }: Parsed<typeof GROUPS>['values']): string[] {
  return names.map((name) => {
    if (/^[\w.-]+$|^[\da-f:]+$/i.test(name)) return name;
    throw usageError(
      `--allow-host: ${showValue(name)} is not the name of a host; leave out scheme, port and path`,
    );
  });
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Serves a page that shows GPUs, their last 24 hours, their holders, the wait queue, processes without a claim, and your jobs, live; and the same as JSON. It prints the page's URL, which has a secret token, and runs until a signal comes. It takes nothing and disturbs no claim.`,
  groups: GROUPS,
  run: web,
};
