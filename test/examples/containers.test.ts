// examples/kubernetes, examples/compose and examples/image: their parts fit together, their commands are right, and their Redis does
// what it should.
import { type ChildProcess, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { parseDuration } from '../../lib/platform/quantities.ts';
import { childrenOf, stat } from '../support/keeper.ts';
import {
  finished,
  launcher,
  Machine,
  output,
  root,
  UNSHARE,
  until,
  whyNoNamespace,
} from '../support/machine.ts';
import { freePort } from '../support/ports.ts';
import { signalLiving } from '../support/processes.ts';
import { noRedis } from '../support/redis-server.ts';

// biome-ignore lint/suspicious/noExplicitAny: manifests
type Manifest = any;

const textOf = (name: string) => readFileSync(join(root, 'examples', name), 'utf8');
const seconds = (text: string) => parseDuration(text.replace('min', 'm'), 'duration') / 1000;

const kustomization: Manifest = parse(textOf('kubernetes/kustomization.yaml'));
const manifests: Manifest[] = kustomization.resources.flatMap((name: string) =>
  parseAllDocuments(textOf(`kubernetes/${name}`), { merge: true }).map((document) => {
    expect(document.errors).toEqual([]);
    return document.toJS();
  }),
);
const find = (kind: string, name: string): Manifest =>
  manifests.find((each) => each.kind === kind && each.metadata.name === name);
const pods = manifests.filter(({ spec }) => spec.template !== undefined);
const compose: Manifest = parse(textOf('compose/compose.yaml'), { merge: true });

let machine: Machine;
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(() => machine.close());

/** The command understands everything but a word that is put in. */
async function understood(words: string[]): Promise<void> {
  const end = words.indexOf('--');
  const at = end < 0 ? words.length : end;
  const cwd = mkdtempSync(join(machine.directory, 'project-'));
  const asked = [...words.slice(0, at), '--nonsense', ...words.slice(at)];
  const { stderr } = await machine.runCommand(asked, { cwd });
  expect(stderr, words.join(' ')).toMatch(/there is no option --nonsense/);
}

describe('the example for Kubernetes', () => {
  test('runs commands that exist, with enough time to stop', async () => {
    for (const name of ['manager', 'workers']) {
      const { spec } = find('Job', name).spec.template;
      const { args } = spec.containers[0];
      await understood(args);
      const grace = args.indexOf('--grace');
      if (grace < 0) continue;
      expect(spec.terminationGracePeriodSeconds).toBeGreaterThan(seconds(args[grace + 1]) + 10);
    }
    expect(find('Job', 'workers').spec.template.spec.containers[0].args).toContain('--grace');
  });

  test('has a valid sweep', async () => {
    const { args } = find('Job', 'manager').spec.template.spec.containers[0];
    const { mountPath } = find('Job', 'manager').spec.template.spec.containers[0].volumeMounts.find(
      ({ name }: Manifest) => name === 'sweep',
    );
    const [file] = kustomization.configMapGenerator[0].files;
    expect(args).toContain(`${mountPath}/${file}`);
    const words = [
      'exp',
      'run',
      '--dry-run',
      join(root, 'examples/kubernetes', file),
      ...args.slice(args.indexOf('--')),
    ];
    const { code, stdout, stderr } = await machine.runCommand(words, { cwd: machine.directory });
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/^exp1 +12 /m);
  });

  test('uses the same names where they belong together', () => {
    for (const { spec, metadata } of pods) {
      const { labels } = spec.template.metadata;
      if (spec.selector) expect(labels).toMatchObject(spec.selector.matchLabels);
      expect(labels['app.kubernetes.io/part-of']).toBe('gpu-owner');
      const { containers, volumes } = spec.template.spec;
      const claimed = (spec.volumeClaimTemplates ?? []).map((each: Manifest) => each.metadata.name);
      const there = [...volumes.map(({ name }: Manifest) => name), ...claimed].sort();
      const mounted = containers[0].volumeMounts.map(({ name }: Manifest) => name).sort();
      expect(mounted, metadata.name).toEqual(there);
      for (const { persistentVolumeClaim, configMap, secret } of volumes) {
        if (persistentVolumeClaim) {
          expect(find('PersistentVolumeClaim', persistentVolumeClaim.claimName)).toBeDefined();
        }
        if (configMap) expect(configMap.name).toBe(kustomization.configMapGenerator[0].name);
        if (secret)
          expect(textOf('kubernetes/kustomization.yaml')).toContain(`generic ${secret.secretName} `);
      }
      for (const { name, value } of containers[0].env ?? []) {
        expect(textOf('../docs/administrators.md')).toContain(`\`${name}\``);
        if (name === 'GPU_OWNER_QUEUE')
          expect(new URL(value).hostname).toBe(find('Service', 'redis').metadata.name);
      }
    }
    const service = find('Service', 'redis').spec;
    const redis = find('StatefulSet', 'redis').spec;
    expect(redis.template.metadata.labels).toMatchObject(service.selector);
    const { ports } = redis.template.spec.containers[0];
    expect(ports[0].name).toBe(service.ports[0].targetPort);
    const policy = find('NetworkPolicy', 'redis').spec;
    expect(redis.template.metadata.labels).toMatchObject(policy.podSelector.matchLabels);
    expect(policy.ingress[0].ports[0].port).toBe(ports[0].name);
    const [{ podSelector }] = policy.ingress[0].from;
    const allowed = podSelector.matchExpressions[0].values;
    expect(
      ['manager', 'workers'].map(
        (job) => find('Job', job).spec.template.metadata.labels[podSelector.matchExpressions[0].key],
      ),
    ).toEqual(allowed);
  });

  test('runs nothing as root or with more rights than needed', () => {
    expect(pods).toHaveLength(3);
    for (const { spec } of pods) {
      const { securityContext, automountServiceAccountToken, containers } = spec.template.spec;
      expect(securityContext).toMatchObject({
        runAsNonRoot: true,
        seccompProfile: { type: 'RuntimeDefault' },
      });
      expect(automountServiceAccountToken).toBe(false);
      expect(containers[0].securityContext).toEqual({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ['ALL'] },
      });
      expect(containers[0].resources).toMatchObject({
        requests: { cpu: expect.anything() },
        limits: { memory: expect.anything() },
      });
    }
  });
});

describe('the example for Compose', () => {
  test('runs commands that exist, with enough time to stop', async () => {
    for (const name of ['manager', 'worker']) await understood(compose.services[name].command);
    const { command, stop_grace_period: period } = compose.services.worker;
    expect(seconds(period)).toBeGreaterThan(seconds(command[command.indexOf('--grace') + 1]) + 10);
    const [, ...health] = compose.services.manager.healthcheck.test;
    expect(health[0]).toBe('gpu-owner');
    await understood(health.slice(1));
  });
});

test('the image has what the command needs', () => {
  const text = textOf('image/Dockerfile');
  const script = textOf('../scripts/package.js');
  const files = [...(/DOCUMENTS = \[([^\]]*)\]/.exec(script)?.[1] ?? '').matchAll(/'([^']+)'/g)].map(
    ([, name]) => (name as string).split('/')[0] as string,
  );
  expect(files.length).toBeGreaterThan(5);
  const ignored = textOf('image/Dockerfile.dockerignore').split('\n');
  const { bullmq, ioredis } = JSON.parse(textOf('../package.json')).peerDependencies;
  expect(text).toContain(`bullmq@${bullmq} ioredis@${/\d+/.exec(ioredis)?.[0]}`);
  const sources = [
    'bin',
    'python',
    'lib',
    'native',
    'simulator',
    'scripts',
    'binding.gyp',
    'package-lock.json',
  ];
  const needed = [...files, ...sources];
  for (const name of needed) expect(ignored).not.toContain(name);
  expect(text).toMatch(/^ENTRYPOINT \["gpu-owner"\]$/m);
  expect(text).toMatch(/^USER \d+:\d+$/m);
});

describe.skipIf(noRedis !== null)(`Redis as they start it${noRedis === null ? '' : `: ${noRedis}`}`, () => {
  const { command, args, readinessProbe } = find('StatefulSet', 'redis').spec.template.spec.containers[0];
  const { redis } = compose.services;
  const plain = (words: string[]) => words.map((word) => word.replaceAll('$$', '$'));
  const ways: [string, string[], string, string][] = [
    ['Kubernetes', [...command, ...args], readinessProbe.exec.command.at(-1), '/run/secrets/queue/password'],
    [
      'Compose',
      plain([...redis.entrypoint, ...redis.command]),
      plain([redis.healthcheck.test[1]])[0] as string,
      '/run/secrets/queue-password',
    ],
  ];

  test.each(ways)('%s’s Redis accepts the password, and is ready', async (_, words, probe, secret) => {
    const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-redis-'));
    const port = await freePort();
    let server: ChildProcess | undefined;
    try {
      const password = join(directory, 'password');
      writeFileSync(password, 's3cret\n', { mode: 0o600 });
      mkdirSync(join(directory, 'bin'));
      // The image's: becomes another user, and Redis.
      writeFileSync(join(directory, 'bin/docker-entrypoint.sh'), '#!/bin/sh\nexec "$@"\n', { mode: 0o755 });
      const here = (text: string) =>
        text
          .replaceAll(secret, password)
          .replace('dir /data', `dir ${directory}\nbind 127.0.0.1\nport ${port}`)
          .replaceAll('redis-cli ', `redis-cli -p ${port} `);
      const env = { PATH: `${join(directory, 'bin')}:${process.env.PATH}` };
      expect(words.join(' ')).toContain(secret);
      server = machine.start(words.map(here), { env });
      const isReady = () => spawnSync('sh', ['-c', here(probe)], { stdio: 'ignore' }).status === 0;
      await until(isReady);
      const { pid } = server;
      expect(readFileSync(`/proc/${pid}/cmdline`, 'latin1')).toMatch(/^redis-server/);
      expect(readFileSync(`/proc/${pid}/cmdline`, 'latin1')).not.toMatch(/s3cret/);
      const settings = ['appendonly', 'appendfsync', 'maxmemory-policy'].map(
        (name) =>
          spawnSync('redis-cli', ['-p', String(port), 'CONFIG', 'GET', name], {
            encoding: 'utf8',
            env: { ...process.env, REDISCLI_AUTH: 's3cret' },
          }).stdout.split('\n')[1],
      );
      expect(settings).toEqual(['yes', 'always', 'noeviction']);

      const queue = `redis://127.0.0.1:${port}?project=p`;
      const run = (file: string) =>
        machine.runCommand(['exp', 'run', '--gpus', '1', '--grid', 'a=1', '--', 'true'], {
          cwd: directory,
          env: { GPU_OWNER_QUEUE: queue, GPU_OWNER_QUEUE_PASSWORD_FILE: file },
        });
      const { code, stderr, stdout } = await run(password);
      expect(code, stderr).toBe(0);
      expect(stdout + stderr).not.toMatch(/warning/);
      writeFileSync(join(directory, 'wrong'), 'wrong', { mode: 0o600 });
      expect((await run(join(directory, 'wrong'))).code).toBe(69);

      const ended = finished(server);
      server.kill('SIGTERM');
      expect((await ended).code).toBe(0);
      expect(isReady()).toBe(false);
    } finally {
      server?.kill('SIGKILL');
      rmSync(directory, { recursive: true, force: true });
    }
  });
});

describe.skipIf(whyNoNamespace() !== null)(
  'as the first process of a container (needs root, for namespaces)',
  () => {
    test('SIGTERM drains the worker, and no zombies stay', async () => {
      // The process that it leaves behind ends, and no parent is left to collect it.
      const orphan =
        '(setsid sh -c "sleep 0.05" &) ; sleep 0.2; touch started; until [ -e go ]; do sleep 0.02; done';
      const words = ['exp', 'run', '--gpus', '1', '--grid', 'a=1,2', '--shell', '--', orphan];
      const child = machine.start([...UNSHARE, launcher, ...words], { cwd: machine.directory });
      const ended = finished(child);
      await output(child, /Assigned/);
      await until(() => readdirSync(machine.directory).includes('started'));
      const [first = 0] = childrenOf(child.pid as number);
      expect(readFileSync(`/proc/${first}/status`, 'utf8')).toMatch(/^NSpid:\s+\d+\s+1$/m);
      const family = (pid: number): number[] => [pid, ...childrenOf(pid).flatMap(family)];
      await until(() => family(first).every((pid) => stat(pid)?.state !== 'Z'));
      signalLiving(first, 'SIGTERM');
      writeFileSync(join(machine.directory, 'go'), '');
      const { code, stdout, stderr } = await ended;
      expect(code, stderr).toBe(143);
      expect(stdout + stderr).toMatch(/1 completed, 0 running, 1 waiting/);
    });
  },
);
