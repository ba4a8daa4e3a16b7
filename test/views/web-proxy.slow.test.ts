// The recipes for a page that others see: behind a proxy with TLS, and scraped by Prometheus.
import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openBrowser, whyNoBrowser } from '../support/browser.ts';
import { Machine, root, until } from '../support/machine.ts';
import { connectionsTo, freePort } from '../support/ports.ts';
import { noPrometheus, PrometheusServer } from '../support/prometheus.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';
import { WebServer } from '../support/web.ts';

const NAME = 'gpus.example.org';
const TOKEN = '0123456789abcdef0123456789abcdef';

let machine: Machine;
const ending: (() => unknown)[] = [];
beforeEach(() => {
  machine = new Machine(2);
});
afterEach(async () => {
  for (const end of ending.splice(0).reverse()) await end();
  await machine.close();
});

const file = (name: string) => join(machine.directory, name);

function tokenFile(): string {
  writeFileSync(file('token'), TOKEN, { mode: 0o600 });
  return file('token');
}

interface Proxy {
  name: string;
  /** Starts it with the example, but for ports and certificates. */
  start(example: string, port: number): string[];
}

const PROXIES: Proxy[] = [
  {
    name: 'nginx',
    start(example, port) {
      const site = example
        .replace('listen 443 ssl', `listen 127.0.0.1:${port} ssl`)
        .replace(/ssl_certificate .*;/, `ssl_certificate ${file('cert.pem')};`)
        .replace(/ssl_certificate_key .*;/, `ssl_certificate_key ${file('key.pem')};`);
      const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
        (kind) => `${kind}_temp_path ${file(kind)};`,
      );
      writeFileSync(
        file('proxy.conf'),
        `daemon off; pid ${file('pid')}; error_log stderr;
         events {} http { access_log off; ${paths.join(' ')} ${site} }`,
      );
      return ['nginx', '-c', file('proxy.conf')];
    },
  },
  {
    name: 'caddy',
    start(example, port) {
      const site = example.replace(
        `${NAME} {`,
        `https://${NAME}:${port} {\n\ttls ${file('cert.pem')} ${file('key.pem')}`,
      );
      writeFileSync(file('proxy.conf'), `{\n\tadmin off\n\tauto_https off\n}\n${site}`);
      return ['caddy', 'run', '--adapter', 'caddyfile', '--config', file('proxy.conf')];
    },
  },
];

const EXAMPLES: Record<string, string> = { nginx: 'nginx.conf', caddy: 'Caddyfile' };
const has = (program: string) => spawnSync(program, [program === 'nginx' ? '-v' : 'version']).status === 0;

/** Asks the proxy for an answer, or the first line of one without end. */
function ask(
  port: number,
  path: string,
  headers: Record<string, string> = {},
  beforeEnd = () => {},
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const all = { host: `${NAME}:${port}`, ...headers };
    const options = { host: '127.0.0.1', port, path, headers: all, rejectUnauthorized: false };
    const asked = request({ ...options, servername: NAME, agent: false }, (response) => {
      let text = '';
      const finish = () => {
        beforeEnd();
        resolve({ status: response.statusCode as number, text });
        asked.destroy();
      };
      response.setEncoding('utf8').on('data', (more) => {
        text += more;
        if (text.endsWith('\n')) finish();
      });
      response.on('end', finish);
      response.on('error', () => {});
    });
    asked.on('error', reject).end();
  });
}

describe.each(PROXIES)('behind $name', ({ name, start }) => {
  const reason = has(name) ? '' : ` (skipped: ${name} is not installed)`;

  async function serve(): Promise<{ server: WebServer; port: number }> {
    const [port, inner] = [await freePort(), await freePort()];
    const words = ['--listen', String(inner), '--token-file', tokenFile(), '--allow-host', NAME];
    const server = await WebServer.start(machine, [...words, '--interval', '30s']);
    execFileSync(
      'openssl',
      `req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=${NAME} -keyout ${file('key.pem')} -out ${file('cert.pem')}`.split(
        ' ',
      ),
      { stdio: 'ignore' },
    );
    const example = readFileSync(join(root, 'examples/web', EXAMPLES[name] as string), 'utf8');
    const command = start(example.replaceAll('127.0.0.1:8088', `127.0.0.1:${inner}`), port);
    const proxy = machine.start(command, { env: { HOME: machine.directory } });
    let said = '';
    proxy.stderr?.on('data', (text) => (said += text));
    ending.push(() => proxy.kill('SIGTERM'));
    await until(
      () =>
        ask(port, '/gpus/').then(
          ({ status }) => status === 200,
          () => false,
        ),
      () => `${name} to answer: ${said}`,
    );
    return { server, port };
  }

  test.skipIf(reason !== '')(
    `token and name are asked for, lines come at once, and a viewer that goes away is noticed${reason}`,
    async () => {
      const { server, port } = await serve();
      const authorization = `Bearer ${TOKEN}`;
      expect((await ask(port, '/gpus/api/v1/gpus')).status).toBe(401);
      expect(JSON.parse((await ask(port, '/gpus/api/v1/gpus', { authorization })).text)).toHaveLength(2);
      // The next line comes after 30 s, which would find the viewer gone. Proxies may keep idle connections.
      const started = Date.now();
      let open = 0;
      const { text } = await ask(port, '/gpus/api/v1/stream', { authorization }, () => {
        open = connectionsTo(server.port);
      });
      const [line = ''] = text.split('\n');
      expect(JSON.parse(line).machines[0].snapshot.gpus).toHaveLength(2);
      expect(open).toBeGreaterThan(0);
      await until(() => connectionsTo(server.port) < open);
      expect(Date.now() - started).toBeLessThan(25_000);
      const foreign = { authorization, origin: 'https://evil.example' };
      expect((await ask(port, '/gpus/api/v1/gpus', foreign)).status).toBe(403);
      // Whatever name the proxy lets through, the server knows its own.
      const renamed = { authorization, host: 'other.example' };
      expect((await ask(port, '/gpus/api/v1/gpus', renamed)).text).not.toMatch(/uuid/);
      if (whyNoBrowser !== '') return;
      const browser = await openBrowser([`--host-resolver-rules=MAP ${NAME} 127.0.0.1`]);
      ending.push(() => browser.close());
      const page = await browser.newPage({ ignoreHTTPSErrors: true });
      page.setDefaultTimeout(WAIT_TIMEOUT_MS);
      await page.goto(`https://${NAME}:${port}/gpus/#token=${TOKEN}`);
      await page.getByRole('listitem').filter({ hasText: 'GPU 1 ' }).waitFor();
      expect(page.url()).toBe(`https://${NAME}:${port}/gpus/`);
    },
  );
});

test.skipIf(noPrometheus)(
  `Prometheus scrapes the server with the token (${noPrometheus ?? ''})`,
  async () => {
    const server = await WebServer.start(machine, ['--token-file', tokenFile()]);
    const targets = [`127.0.0.1:${server.port}`];
    const [right, without] = await Promise.all([
      PrometheusServer.start(targets, { authorization: { credentials_file: file('token') } }),
      PrometheusServer.start(targets),
    ]);
    await until(async () => (await right.query('count(gpu_owner_gpu_info)'))[0]?.value[1] === '2');
    await until(async () =>
      Object.values((await without.targets()) ?? {})
        .join()
        .includes('401'),
    );
  },
);
