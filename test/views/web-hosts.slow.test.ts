// `web --hosts`: one page for several machines over a real ssh, of which one is down.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { StreamLine } from '../../lib/views/web/shapes.ts';
import { openBrowser, whyNoBrowser } from '../support/browser.ts';
import { output, until } from '../support/machine.ts';
import { processesWith, signalAll } from '../support/processes.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';
import { WebServer } from '../support/web.ts';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const NAMES = ['a', 'b', 'c', 'd', 'down'];

const noSSHD = whyNoSSHD();
describe.skipIf(noSSHD !== null)(`web --hosts${noSSHD === null ? '' : ` (skipped: ${noSSHD})`}`, () => {
  let hosts: Hosts;
  let server: WebServer;

  beforeAll(async () => {
    hosts = await Hosts.start();
    for (const name of ['a', 'b', 'c', 'd']) hosts.add(name, { gpus: 2 });
    hosts.addName('down', ['Port 1']);
    const env = hosts.configure(`hosts: [${NAMES.join(', ')}]\n`);
    server = await WebServer.start(
      hosts.viewer,
      ['--hosts', 'all', '--interval', '500ms', '--timeout', '1m'],
      { env },
    );
  });
  afterAll(() => hosts?.close());

  /** The machine of a host: the first is the place of sshd. */
  const machineOf = (name: string) =>
    hosts.machines[NAMES.indexOf(name) + 1] as (typeof hosts.machines)[number];

  async function lineWith(isWanted: (line: StreamLine) => boolean): Promise<StreamLine> {
    let found: StreamLine | undefined;
    await server.watch((line) => {
      if (isWanted(line)) found = line;
      return found === undefined;
    });
    return found as StreamLine;
  }
  const allAnswered = ({ machines }: StreamLine) =>
    machines.every(({ snapshot, problem }) => snapshot !== null || problem !== null);

  test('the API answers with an object by host', async () => {
    const line = await lineWith(allAnswered);
    expect(line.machines.map(({ host }) => host)).toEqual(NAMES);
    expect(line.machines.map(({ snapshot }) => snapshot?.gpus.length ?? null)).toEqual([2, 2, 2, 2, null]);
    expect(line.machines[4]?.problem).toMatch(/refused/);
    const { json: gpus } = await server.get('/api/v1/gpus');
    expect(Object.keys(gpus)).toEqual(NAMES);
    expect(gpus.a).toMatchObject({ problem: null, gpus: [{ index: 0, state: 'free' }, { index: 1 }] });
    expect(gpus.down).toEqual({ problem: expect.stringMatching(/refused/), gpus: null });
    expect((await server.get('/api/v1/queue')).json.b).toEqual({ problem: null, queue: [] });
    const { json: history } = await server.get('/api/v1/history');
    expect(history.machines.map(({ gpus }: { gpus: object[] }) => gpus.length)).toEqual([2, 2, 2, 2, 0]);
    expect(await server.get('/metrics')).toMatchObject({ status: 404 });
  });

  test("sends logs of a host's jobs until their end, and says why where it can't", async () => {
    const a = machineOf('a');
    const go = join(a.directory, 'go');
    const script = `echo first; while [ ! -e ${go} ]; do sleep 0.05; done; echo last`;
    const { stdout: id } = await a.runCommand(['submit', '--', 'sh', '-c', script]);
    const log = `/api/v1/jobs/a:${id.trim()}/log`;
    await until(async () => (await server.get(log)).text === 'first\n');
    const headers = { authorization: `Bearer ${server.token}` };
    const { body } = await fetch(`http://127.0.0.1:${server.port}${log}?follow=true`, { headers });
    let text = '';
    for await (const bytes of body?.pipeThrough(new TextDecoderStream()) ?? []) {
      text += bytes;
      if (text === 'first\n') writeFileSync(go, '');
    }
    expect(text).toBe('first\nlast\n');
    expect((await server.get(log.replace(':', '%3A'))).text).toBe(text);
    const answers = [
      ['a:99', 404, /no job/],
      ['down:1', 503, /refused/],
      ['other:1', 404, /gpu1:17, of a host that this server shows/],
      ['1', 404, /gpu1:17/],
      ['%', 404, /gpu1:17/],
    ] as const;
    for (const [job, status, message] of answers)
      expect(await server.get(`/api/v1/jobs/${job}/log`)).toMatchObject({
        status,
        json: { error: { message: expect.stringMatching(message) } },
      });
  });

  describe.skipIf(whyNoBrowser !== '')(`the page${whyNoBrowser}`, () => {
    let browser: Browser;
    let page: Page;
    beforeAll(async () => {
      browser = await openBrowser();
      page = await browser.newPage();
      page.setDefaultTimeout(WAIT_TIMEOUT_MS);
      await page.goto(server.url);
    });
    afterAll(() => browser?.close());

    const gpus = () => page.getByRole('region', { name: 'GPUs' }).getByRole('listitem');
    const rowOf = (table: string, text: string) =>
      page.getByRole('region', { name: table, exact: true }).getByRole('listitem').filter({ hasText: text });

    test('shows all machines, who has what there, and the one that is down with its reason', async () => {
      const words = ['run', '-n2', '--', 'sh', '-c', 'echo runs; sleep 600'];
      await output(machineOf('b').startCommand(words), /runs/);
      machineOf('b').startCommand(['run', '-n1', '--', 'sleep', '600']);
      const limited = ['run', '--for', '2h', '--name', 'train', '--note', 'soon', '--'];
      await output(machineOf('c').startCommand([...limited, ...words.slice(3)]), /runs/);
      const occupant = ['simulate', 'occupy', '1', '--memory', '2GiB', '--name', 'intruder'];
      machineOf('c').startCommand(occupant);
      await page.getByRole('heading', { name: '5 machines', level: 1 }).waitFor();
      await page
        .getByRole('status')
        .filter({ hasText: '4 of 8 GPUs free · 1 waiting · 1 used without a claim' })
        .waitFor();
      for (const name of ['a', 'b', 'c', 'd'])
        await page
          .getByRole('heading', { name: new RegExp(`^${name} \\d of 2 GPUs free`), level: 3 })
          .waitFor();
      await page.getByRole('heading', { name: /^down .*refused/, level: 3 }).waitFor();
      await rowOf('Waiting', 'sleep 600').filter({ hasText: 'b' }).waitFor();
      await rowOf('Users', '1 GPU').waitFor();
      const train = gpus().filter({ hasText: 'train' });
      await train.locator('summary').click();
      await train.getByText(/^train, since .*, until .* \(in 1 h\), soon; sh -c /).waitFor();
      // The charts come with the first answer about them.
      await page.getByRole('img', { name: /^a GPU 0, last \d+ s: / }).waitFor();
    });

    test('the filter is for all, by the name of a host too', async () => {
      await page.getByRole('searchbox').fill('leased');
      await until(async () => (await gpus().count()) === 3);
      await page.getByRole('searchbox').fill('GPU 1');
      await until(async () => (await gpus().count()) === 4);
      await page.getByRole('searchbox').press('Escape');
      await until(async () => (await gpus().count()) === 8);
    });

    test("of one host alone shows its jobs' logs, and asks for nothing that there isn't", async () => {
      const own = await WebServer.start(hosts.viewer, ['--hosts', 'a'], { env: hosts.env });
      const one = await browser.newPage();
      one.setDefaultTimeout(WAIT_TIMEOUT_MS);
      const refused: string[] = [];
      one.on('response', (response) => {
        if (!response.ok()) refused.push(response.url());
      });
      await one.goto(own.url);
      // Names of hosts may have % in them.
      const asked = one.waitForRequest(/\/jobs\/a%3A1\/log/);
      await one.getByRole('button', { name: 'Log of job a:1' }).click();
      await asked;
      const dialog = one.getByRole('dialog');
      await dialog.getByRole('status').filter({ hasText: 'The job has ended.' }).waitFor();
      expect(await dialog.locator('pre').textContent()).toBe('first\nlast');
      expect(refused).toEqual([]);
      await one.close();
      own.child.kill();
    });

    test('keeps nobody out, and fits a small screen', async () => {
      const width = 360;
      await page.setViewportSize({ width, height: 800 });
      await page.evaluate(AXE);
      // biome-ignore lint/suspicious/noExplicitAny: axe is only there in the page
      const { violations } = await page.evaluate(() => (globalThis as any).axe.run());
      expect(violations.map(({ id }: { id: string }) => id)).toEqual([]);
      expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);
    });

    test('a host that goes away keeps its last picture, with the reason', async () => {
      signalAll(processesWith(`HOME=${machineOf('d').directory}/home`), 'SIGKILL');
      machineOf('d').set('error=all:9');
      await page.getByRole('heading', { name: /^d .*Showing the last snapshot/, level: 3 }).waitFor();
      await page.setViewportSize({ width: 1280, height: 800 });
      await until(async () => (await gpus().count()) === 8);
    });
  });
});
