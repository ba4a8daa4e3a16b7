// Prometheus, its tools and readers of the file judge the metrics. And the examples for Prometheus and Grafana.
import { mkdirSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { readExposition } from '../support/exposition.ts';
import { type Machine, output, pause, root, until } from '../support/machine.ts';
import { machineOf, noPrometheus, PrometheusServer, promtool, serveMetrics } from '../support/prometheus.ts';

const examples = join(root, 'examples/prometheus');
const rules = join(examples, 'alerts.yml');

async function lease(machine: Machine, ...options: string[]): Promise<void> {
  const words = ['run', ...options, '--for', '1h', '--', 'sh', '-c', 'echo runs; sleep 600'];
  await output(machine.startCommand(words), /runs/);
}

/** The expressions of the dashboard, for all machines. */
function dashboardExpressions(): string[] {
  const { panels } = JSON.parse(readFileSync(join(examples, 'dashboard.json'), 'utf8'));
  return (panels as { targets: { expr: string }[] }[]).flatMap(({ targets }) =>
    targets.map(({ expr }) => expr.replaceAll('$instance', '.*')),
  );
}

test.skipIf(noPrometheus)(
  `promtool has no complaint about the metrics of any machine (${noPrometheus ?? ''})`,
  async () => {
    for (const name of ['a100x4-mig', 'wsl', 'mixed']) {
      const machine = machineOf(name);
      const { stdout } = await machine.runCommand(['metrics']);
      expect([name, promtool(['check', 'metrics'], stdout)]).toEqual([name, '']);
    }
    // promtool complains about mistakes.
    expect(promtool(['check', 'metrics'], 'x{a="1" 1\n')).not.toBe('');
  },
);

test.skipIf(noPrometheus)(`the alerts come when they should, and only then (${noPrometheus ?? ''})`, () => {
  expect(promtool(['check', 'rules', rules])).toBe('');
  expect(promtool(['test', 'rules', join(examples, 'alerts.test.yml')])).toBe('');
  const alerts = (path: string, key: string) =>
    [...readFileSync(join(examples, path), 'utf8').matchAll(new RegExp(`${key}: (\\w+)$`, 'gm'))].map(
      ([, name]) => name,
    );
  expect(alerts('alerts.test.yml', 'alertname')).toEqual(alerts('alerts.yml', 'alert'));
});

test('the dashboard and the alerts ask for metrics that exist', async () => {
  const machine = machineOf(2);
  await lease(machine, '-n', '1');
  await lease(machine, '--memory', '1GiB');
  const { stdout } = await machine.runCommand(['metrics']);
  const known = new Set(readExposition(stdout).map(({ name }) => name));
  known.add('gpu_owner_gpu_idle_seconds'); // only once a GPU is known to be idle
  const asked = (text: string) => [...text.matchAll(/\bgpu_owner_\w+/g)].map(([name]) => name);
  const names = [...asked(dashboardExpressions().join('\n')), ...asked(readFileSync(rules, 'utf8'))];
  expect(names.length).toBeGreaterThan(15);
  expect(names.filter((name) => !known.has(name))).toEqual([]);
});

test('the dashboard has every state that metrics have, and names each one alike', async () => {
  const { stdout } = await machineOf(1).runCommand(['metrics']);
  const states = readExposition(stdout)
    .filter(({ name }) => name === 'gpu_owner_gpu_state')
    .map(({ labels }) => labels.state);
  const { panels } = JSON.parse(readFileSync(join(examples, 'dashboard.json'), 'utf8'));
  const panel = (title: string) => panels.find((each: { title: string }) => each.title === title);
  const { overrides } = panel('GPUs by state').fieldConfig;
  expect(overrides.map(({ matcher }: { matcher: { options: string } }) => matcher.options)).toEqual(states);
  const { fieldConfig, targets } = panel('State of each GPU');
  const texts: { text: string }[] = Object.values(fieldConfig.defaults.mappings[0].options);
  expect(texts.map(({ text }) => text)).toEqual([...states, 'suspect']);
  const codes = [...targets[0].expr.matchAll(/state="(\w+)"} == 1\) \* (\d)/g)];
  expect(codes.map(([, state, code]) => [state, code])).toEqual([
    ...states.map((state, i) => [state, String(i)]),
    ['free', String(states.length)],
  ]);
});

test('docs/metrics.md has a row for every metric of a machine, with its labels, and no other', async () => {
  const machine = machineOf(2);
  await lease(machine, '-n', '1');
  const { stdout } = await machine.runCommand(['metrics']);
  const labelsOf = (labels: object) =>
    Object.keys(labels).filter((label) => !['gpu', 'uuid', 'mig'].includes(label));
  const exposed = readExposition(stdout).map(({ name, labels }) => {
    const own = labelsOf(labels);
    return own.length === 0 ? name : `${name}{${own.join(',')}}`;
  });
  const page = readFileSync(join(root, 'docs/metrics.md'), 'utf8');
  const rows = [...page.matchAll(/^\| `(gpu_owner_[^`]+)`/gm)].map(([, name]) => name);
  // Only of idle GPUs and of shares.
  const sometimes = [
    'gpu_owner_gpu_idle_seconds{user,uid}',
    ...['bytes', 'used_bytes'].map((name) => `gpu_owner_share_${name}{user,uid,pid}`),
  ];
  expect(rows.filter((row) => row !== undefined && sometimes.includes(row))).toEqual(sometimes);
  expect(rows.filter((row) => row === undefined || !sometimes.includes(row))).toEqual([
    ...new Set(exposed.filter((each) => !sometimes.includes(each))),
  ]);
});

test.skipIf(noPrometheus)(
  `Prometheus scrapes machines, and answers what the dashboard asks (${noPrometheus ?? ''})`,
  async () => {
    const plain = machineOf(4);
    plain.set('gpu=3', 'error=cuda-context:999');
    await plain.runCommand(['run', '--devices', '3', '--no-wait', '--', 'true']);
    await lease(plain, '--devices', '0');
    await lease(plain, '--devices', '2', '--memory', '1GiB');
    await output(plain.startCommand(['simulate', 'occupy', '1']), /ready/);
    const divided = machineOf('a100x4-mig');
    await lease(divided, '--devices', '1:0');
    const urls = [await serveMetrics(plain), await serveMetrics(divided)];
    const prometheus = await PrometheusServer.start(urls.map((url) => new URL(url).host));
    const none = Object.fromEntries(urls.map((url) => [url, '']));
    await until(async () => (await prometheus.targets()) !== null, 'the first scrapes');
    await until(async () => (await prometheus.query('gpu_owner_driver_up')).length === 2);
    expect(await prometheus.targets()).toEqual(none);

    const [leased] = await prometheus.query('gpu_owner_gpu_leased{mig=""}');
    expect(leased?.metric).toMatchObject({ gpu: '0', instance: new URL(urls[0] as string).host });
    const [part] = await prometheus.query('gpu_owner_gpu_leased{mig!=""}');
    expect(part?.metric).toMatchObject({ gpu: '1', mig: '0', instance: new URL(urls[1] as string).host });
    for (const name of Object.keys({ ...leased?.metric, ...part?.metric }))
      expect(name).not.toMatch(/^exported_/);

    for (const expression of dashboardExpressions())
      expect([expression, (await prometheus.query(expression)).length > 0]).toEqual([expression, true]);
    const states = dashboardExpressions().find((each) => each.startsWith('max by')) as string;
    const codes = await prometheus.query(states.replaceAll('.*', new URL(urls[0] as string).host));
    const byGPU = codes.toSorted((a, b) => Number(a.metric.gpu) - Number(b.metric.gpu));
    expect(byGPU.map(({ value }) => value[1])).toEqual(['1', '3', '2', '6']);
    const [intruder] = await prometheus.query(
      'gpu_owner_gpu_processes_without_claim > 0 unless ignoring (state) gpu_owner_gpu_state{state="excluded"} == 1',
    );
    expect(intruder?.metric.gpu).toBe('1');

    // A GPU that hangs takes a scrape longer; the others stay.
    plain.set('gpu=1', 'hang=memory');
    await until(async () =>
      (await prometheus.query('gpu_owner_gpu_up == 0')).some(({ metric }) => metric.gpu === '1'),
    );
  },
);

test('readers of the file always read one whole text', async () => {
  const machine = machineOf(4);
  const directory = join(machine.directory, 'textfile');
  mkdirSync(directory);
  const file = join(directory, 'gpu-owner.prom');
  const write = () => machine.runCommand(['metrics', '--output', file]);
  await write();
  let writing = true;
  const writers = Promise.all(
    Array.from({ length: 3 }, async () => {
      for (let i = 0; i < 3; i++) expect(await write()).toMatchObject({ code: 0, stderr: '' });
    }),
  ).finally(() => {
    writing = false;
  });
  /** By the times of writing: inodes are used again. */
  const versions = new Set<bigint>();
  const names = new Set<string>();
  while (writing) {
    const samples = readExposition(readFileSync(file, 'utf8'));
    expect(samples.at(-1)?.name).toBe('gpu_owner_longest_wait_seconds');
    versions.add(statSync(file, { bigint: true }).mtimeNs);
    for (const name of readdirSync(directory)) if (name.endsWith('.prom')) names.add(name);
    await pause(1);
  }
  await writers;
  expect(versions.size).toBeGreaterThan(2);
  expect([...names]).toEqual(['gpu-owner.prom']);
  expect(readdirSync(directory)).toEqual(['gpu-owner.prom']);
});
