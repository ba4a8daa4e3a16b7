import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { Machine, output } from './machine.ts';
import { freePort } from './ports.ts';
import { until } from './time.ts';

const has = (program: string) => spawnSync(program, ['--version']).status === 0;

/** Why tests with a Prometheus are skipped; null: they aren't. */
export const noPrometheus =
  has('prometheus') && has('promtool') ? null : 'prometheus and promtool are not installed';

/** A machine until the test ends. */
export function machineOf(name: string | number): Machine {
  const machine = new Machine(name);
  onTestFinished(() => machine.close());
  return machine;
}

/** Starts `metrics --listen`. @returns the URL */
export function serveMetrics(machine: Machine, where = '0'): Promise<string> {
  return output(machine.startCommand(['metrics', '--listen', where]), /(http:\S+)\n/);
}

/** Runs promtool. @returns what it complains about; '': nothing */
export function promtool(args: string[], input = ''): string {
  const { status, stdout, stderr } = spawnSync('promtool', args, { input, encoding: 'utf8' });
  return status === 0 && stderr === '' ? '' : `${stdout}${stderr}` || `exit code ${status}`;
}

/** A sample as a query of Prometheus returns it. */
interface QueriedSample {
  metric: Record<string, string>;
  value: [time: number, value: string];
}

/** A Prometheus that scrapes some targets every five seconds until the test ends. */
export class PrometheusServer {
  readonly #url: string;

  private constructor(port: number) {
    this.#url = `http://127.0.0.1:${port}`;
  }

  /** @param targets HOST:PORT each, @param settings more of `scrape_config` */
  static async start(targets: string[], settings: object = {}): Promise<PrometheusServer> {
    const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-prometheus-'));
    const file = join(directory, 'prometheus.yml');
    const scrape = { job_name: 'gpu-owner', static_configs: [{ targets }], ...settings };
    const global = { scrape_interval: '5s', scrape_timeout: '5s' };
    writeFileSync(file, JSON.stringify({ global, scrape_configs: [scrape] })); // JSON is YAML
    const port = await freePort();
    const child = spawn(
      'prometheus',
      [
        `--config.file=${file}`,
        `--storage.tsdb.path=${join(directory, 'data')}`,
        `--web.listen-address=127.0.0.1:${port}`,
        '--log.level=warn',
      ],
      { stdio: 'ignore' },
    );
    onTestFinished(async () => {
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null)
        await new Promise((resolve) => child.once('exit', resolve));
      rmSync(directory, { recursive: true, force: true });
    });
    const server = new PrometheusServer(port);
    await until(
      () =>
        fetch(`${server.#url}/-/ready`).then(
          ({ ok }) => ok,
          () => false,
        ),
      'Prometheus to be ready',
    );
    return server;
  }

  /** @throws if Prometheus refuses the query */
  async query(query: string): Promise<QueriedSample[]> {
    const { data, error } = await this.#get('query', { query });
    if (error !== undefined) throw new Error(`${query}: ${error}`);
    return data.result;
  }

  /** The errors of the last scrapes, by URL; '': none. null: it hasn't scraped yet. */
  async targets(): Promise<Record<string, string> | null> {
    const { data } = await this.#get('targets', { state: 'active' });
    const targets = data.activeTargets as { scrapeUrl: string; health: string; lastError: string }[];
    if (targets.length === 0 || targets.some(({ health }) => health === 'unknown')) return null;
    return Object.fromEntries(targets.map(({ scrapeUrl, lastError }) => [scrapeUrl, lastError]));
  }

  // biome-ignore lint/suspicious/noExplicitAny: its shape depends on the question
  async #get(what: string, parameters: Record<string, string>): Promise<any> {
    const answer = await fetch(`${this.#url}/api/v1/${what}?${new URLSearchParams(parameters)}`);
    return answer.json();
  }
}
