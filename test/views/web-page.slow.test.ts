// The page of `web` as people meet it: in a real browser, by mouse or keyboard, while things happen on the machine.
import { appendFileSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { END_BYTES } from '../../lib/usage/line.ts';
import { Jobs } from '../jobs/background.ts';
import { openBrowser, whyNoBrowser } from '../support/browser.ts';
import { finished, Machine, output, until, uuidOf } from '../support/machine.ts';
import { freePort } from '../support/ports.ts';
import { WAIT_TIMEOUT_MS } from '../support/time.ts';
import { WebServer } from '../support/web.ts';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const WIDE = { width: 1280, height: 800 };
const NARROW = { width: 360, height: 740 };

describe.skipIf(whyNoBrowser !== '')(`the page${whyNoBrowser}`, () => {
  let browser: Browser;
  let machine: Machine;
  let page: Page;
  /** Errors of the page, refusals of its content security policy among them. */
  let complaints: string[];
  /** Has holders, jobs, waiters and a process without a claim, for tests that change nothing there. */
  let full: Machine;
  let serverOfFull: WebServer;

  beforeAll(async () => {
    browser = await openBrowser();
    full = new Machine(4);
    await fill();
    serverOfFull = await WebServer.start(full);
  });
  afterAll(async () => {
    await browser?.close();
    await new Jobs(full).end();
    await full.close();
  });
  beforeEach(() => {
    machine = new Machine(4);
    complaints = [];
  });
  afterEach(async ({ task }) => {
    if (task.result?.state === 'fail') {
      console.error(await page?.locator('body').innerText(), await new Jobs(machine).list(), complaints);
    }
    await page?.context().close();
    await new Jobs(machine).end();
    await machine.close();
  });

  async function open(url: string, options: BrowserContextOptions = {}): Promise<void> {
    const context = await browser.newContext({ viewport: WIDE, ...options });
    context.setDefaultTimeout(WAIT_TIMEOUT_MS);
    page = await context.newPage();
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('console', (message) => {
      // A connection that fails is what some tests are about.
      if (message.type() === 'error' && !/Failed to load resource|ERR_/.test(message.text()))
        complaints.push(message.text());
    });
    await page.goto(url);
  }

  const cards = () => page.getByRole('region', { name: 'GPUs' }).getByRole('listitem');
  const card = (gpu: number) => cards().filter({ hasText: `GPU ${gpu} ` });
  const more = (gpu: number) => card(gpu).locator('summary').click();
  const rowOf = (section: string, text: string | RegExp) =>
    page.getByRole('region', { name: section, exact: true }).getByRole('listitem').filter({ hasText: text });
  const shows = (gpu: number, text: string | RegExp) => card(gpu).filter({ hasText: text }).waitFor();

  async function fill(): Promise<void> {
    const jobs = new Jobs(full);
    const note = '<img src=x onerror=alert(1)>';
    const words = ['-n', '2', '--name', 'train', '--note', note, '--for', '2h', 'sh', '-c', 'sleep 1000'];
    await jobs.submit(words);
    await jobs.reach(1, 'running');
    const occupy = ['simulate', 'occupy', '3', '--name', 'python', '--memory', '31GiB'];
    await output(full.startCommand(occupy), /ready/);
    await jobs.submit(['-n', '4', '--name', 'large', 'sleep', '1000']);
    await until(async () => (await jobs.find(2)).position === 1);
  }

  test('teaches where there is nothing, and shows a claim when it comes and when it goes, without a reload', async () => {
    const server = await WebServer.start(machine);
    await open(server.url);
    await shows(2, 'free');
    await page.getByText('4 of 4 GPUs free').waitFor();
    for (const command of ['run', 'submit'])
      await page.getByText(`gpu-owner ${command} -n 1 -- python train.py`).waitFor();
    const holder = machine.startCommand(['hold', '-n', '1', '--devices', '2']);
    await output(holder, /visibleDevices/);
    await shows(2, /leased.*PID \d+/);
    await page.getByText('3 of 4 GPUs free').waitFor();
    // Also with a history of seconds.
    expect((await card(2).boundingBox())?.height).toBeLessThan(400);
    expect(await page.title()).toMatch(/^3 of 4 GPUs free – /);
    holder.stdin?.end();
    await shows(2, 'free');
    machine.startCommand(['hold', '--memory', '20GiB', '--devices', '1']);
    await shows(1, '1 share');
    await more(1);
    await shows(1, /20 GiB, since .*leased for/);
    expect(complaints).toEqual([]);
  });

  test('shows how far a sweep is, the last 24 hours, and the last 30 days', async () => {
    await machine.runCommand(['run', 'true']);
    const ledger = join(machine.lockDirectory, 'usage');
    const held = 12 * 3_600_000;
    const lease = { since: Date.now() - 3 * held, gpus: [{ index: 0, uuid: uuidOf(0) }], held, ended: true };
    appendFileSync(
      join(ledger, readdirSync(ledger)[0] ?? ''),
      `${JSON.stringify(lease).padEnd(END_BYTES)}\n`,
    );
    const go = join(machine.directory, 'go');
    const task = `[ {a} = 1 ] || while [ ! -e ${go} ]; do sleep 0.05; done; echo '{{"loss": {a}}}' >$GPU_OWNER_RESULT`;
    const sweep = ['exp', 'run', '--detach', '--gpus', '1', '--grid', 'a=1..3'];
    const words = [...sweep, '--', 'sh', '-c', task];
    const { code, stderr } = await machine.runCommand(words, { cwd: machine.directory });
    expect([code, stderr]).toEqual([0, stderr]);
    const server = await WebServer.start(machine);
    await open(server.url);
    const row = rowOf(`Jobs of ${userInfo().username}`, 'exp run');
    await row.filter({ hasText: '1 of 3 tasks' }).waitFor();
    expect(await row.getByRole('progressbar').getAttribute('value')).toBe('1');
    await page
      .getByRole('img', { name: /^GPU 0, last \d+ (s|min).*: leased for \d+ s, .*memory up to \d+ %/ })
      .waitFor();
    expect(await page.getByRole('img', { name: /^GPU/ }).count()).toBe(4);
    const bars = page.getByRole('img', {
      name: /: up to ([6-9]|1[0-2])\.\d GPU hours a day, on \d{4}-\d\d-\d\d$/,
    });
    await bars.waitFor();
    expect(await bars.locator('title').count()).toBe(30);
    await page.getByRole('searchbox').fill('GPU 3');
    await until(async () => (await page.getByRole('img', { name: /^GPU/ }).count()) === 1);
    expect(await bars.count()).toBe(0);
    await page.getByRole('searchbox').fill('');
    writeFileSync(go, '');
    await row
      .filter({ hasText: '3 of 3 tasks' })
      .or(row.filter({ hasText: 'completed' }))
      .first()
      .waitFor();
    expect(complaints).toEqual([]);
  });

  test('shows and prints holders, jobs, who waits, processes without a claim and totals; text of others stays text', async () => {
    await open(serverOfFull.url);
    await shows(0, /leased.*train.*until \d\d:\d\d/);
    await rowOf('Waiting', 'large').waitFor();
    const paper = (await page.pdf({ format: 'A4' })).toString('latin1');
    expect(paper.match(/\/Type\s*\/Page\b/g)).toHaveLength(1);
    await more(0);
    await shows(
      0,
      /job 1 train, since .*until \d\d:\d\d( tomorrow)? \(in 1 h\), <img src=x onerror=alert\(1\)>; .*sleep 1000/,
    );
    const large = rowOf(
      'Waiting',
      /^1\S+4 GPUslarge.*sleep 1000needs 3 more of 4 GPUs: \S+ has 2; 1 is used/,
    );
    await large.locator('summary').click();
    await large.filter({ hasText: /GPU 0, 1leased by .*Processjob 2, PID \d+/ }).waitFor();
    await rowOf(
      `Jobs of ${userInfo().username}`,
      /^1trainrunningGPU 0,1.*until \d\d:\d\d.*onerror/,
    ).waitFor();
    await rowOf('Users', /^\S+2 GPUs.*1 waiting.*uses 1 GPU without a claim$/).waitFor();
    await shows(3, /without a claim.*python/);
    await more(3);
    await shows(3, /python \(PID \d+\), 31(\.\d)? GiB, without a claim/);
    const colours = page.locator('.dot');
    const classes = await colours.evaluateAll((dots) => dots.map((dot) => dot.className));
    expect(classes.length).toBeGreaterThan(4);
    expect(new Set(classes).size).toBe(1);
    expect(await page.locator('img').count()).toBe(0);
    expect(complaints).toEqual([]);
  });

  test("shows a job's log by a click, goes on with it, and says how it ended or what is missing", async () => {
    const go = join(machine.directory, 'go');
    const wait = `while [ ! -e ${go} ]; do sleep 0.05; done`;
    const jobs = new Jobs(machine);
    const text = `head -c 250000 /dev/zero | tr '\\0' x; echo; i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i + 1)); done`;
    const bar = `printf '\\033[2J<img src=x onerror=alert(1)>\\n\\repoch 1\\repoch 2'`;
    await jobs.submit(['--name', 'train', '--', 'sh', '-c', `${text}; ${bar}; ${wait}; echo; echo end`]);
    await jobs.submit(['--', 'sh', '-c', wait]);
    const server = await WebServer.start(machine);
    await open(server.url);
    const dialog = page.getByRole('dialog');
    const says = (status: string | RegExp) =>
      dialog.getByRole('status').filter({ hasText: status }).waitFor();
    await page.getByRole('button', { name: 'Log of job 1 (train)' }).focus();
    await page.keyboard.press('Enter');
    await says(/^live$/);
    const output = dialog.locator('pre');
    await output.filter({ hasText: 'epoch 2' }).waitFor();
    expect(await output.textContent()).toMatch(
      /^x{250000}\nline 0\nline 1\n[\s\S]*\nline 199\n<img src=x .*>\nepoch 2$/,
    );
    const below = () =>
      output.evaluate(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight);
    expect(await below()).toBeLessThan(5);
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Log of job 2' }).click();
    await says('No output yet.');
    writeFileSync(go, '');
    await says('The job has ended, and has written nothing.');
    await dialog.getByRole('button', { name: 'Close' }).click();
    await page.getByRole('button', { name: 'Log of job 1' }).click();
    await says('The job has ended.');
    expect(await output.textContent()).toMatch(/\nepoch 2\nend$/);
    expect(await below()).toBeLessThan(5);
    await page.keyboard.press('Escape');
    rmSync(join(jobs.directoryOf(1), 'output'));
    await page.getByRole('button', { name: 'Log of job 1' }).click();
    await says(/^the output of job 1 can't be read: ENOENT.*Trying again\.$/);
    expect(complaints).toEqual([]);
  });

  test('says that the server is gone, and goes on when it has started again', async () => {
    const file = join(machine.directory, 'token');
    const token = '0123456789abcdef0123456789abcdef';
    writeFileSync(file, token, { mode: 0o600 });
    const args = ['--listen', String(await freePort()), '--token-file', file];
    const first = await WebServer.start(machine, args);
    await open(`${first.url}#token=${token}`);
    await shows(0, 'free');
    first.child.kill('SIGKILL');
    await finished(first.child, 'exit');
    await page
      .getByRole('status')
      .filter({ hasText: /No connection to the server.*Showing the last snapshot/ })
      .waitFor();
    await shows(0, 'free');
    const holder = machine.startCommand(['hold', '-n', '1', '--devices', '0']);
    await output(holder, /visibleDevices/);
    await WebServer.start(machine, args);
    await shows(0, 'leased');
    await page
      .getByRole('status')
      .filter({ hasText: /^live$/ })
      .waitFor();
    expect(complaints).toEqual([]);
  });

  test('says that the server does not answer, in a log that is open, too', async () => {
    await new Jobs(machine).submit(['sleep', '1000']);
    const server = await WebServer.start(machine);
    await open(`http://127.0.0.1:${server.port}/`);
    await page.clock.install();
    server.child.kill('SIGSTOP');
    await page.getByRole('textbox').fill(server.token);
    await page.getByRole('button').click();
    const says = (text: RegExp) => page.getByRole('status').filter({ hasText: text }).waitFor();
    await says(/^connecting$/);
    await page.clock.fastForward(15_000);
    await says(/^No connection to the server \(the server sends nothing\)\. Trying again\.$/);
    server.child.kill('SIGCONT');
    await says(/^live$/);
    await page.getByRole('button', { name: 'Log of job 1' }).click();
    await says(/^No output yet\.$/);
    server.child.kill('SIGSTOP');
    await page.clock.fastForward(17_000);
    await says(/sends nothing.*Showing the last snapshot/);
    await says(/^the server sends nothing\. Trying again\.$/);
    server.child.kill('SIGCONT');
    await says(/^No output yet\.$/);
    await page.keyboard.press('Escape');
    await says(/^live$/);
    expect(complaints).toEqual([]);
  });

  test('says what is wrong with the driver, from the start or later, and goes on when it works', async () => {
    machine.set('error=all:9');
    const server = await WebServer.start(machine);
    await open(server.url);
    const problem = page.locator('.connection.bad');
    await problem.filter({ hasText: /driver/i }).waitFor();
    expect(await problem.textContent()).not.toContain('Showing the last snapshot');
    expect(await page.getByText('free').count()).toBe(0);
    machine.set('error=off');
    await shows(0, 'free');
    machine.set('error=all:9');
    await shows(0, /unavailable.*the NVIDIA driver is not/);
    machine.set('error=off');
    await shows(0, 'free');
    expect(
      await page
        .getByRole('status')
        .filter({ hasText: /^live$/ })
        .count(),
    ).toBe(1);
    expect(complaints).toEqual([]);
  });

  test('works by keyboard alone: a wrong token, the right one, the filter, tables', async () => {
    await open(`http://127.0.0.1:${serverOfFull.port}/#token=wrong`);
    await page.getByRole('alert').filter({ hasText: 'The server refuses the token' }).waitFor();
    const focused = () => page.evaluate('document.activeElement?.tagName');
    await page.keyboard.press('Tab');
    expect(await focused()).toBe('INPUT');
    await page.keyboard.type('wrong');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'The server refuses the token' }).waitFor();
    await until(async () => {
      await page.keyboard.press('Tab');
      return (await focused()) === 'INPUT';
    });
    await page.keyboard.press('Control+a');
    await page.keyboard.type(serverOfFull.url);
    await page.keyboard.press('Enter');
    await shows(0, 'leased');
    expect(page.url()).toBe(`http://127.0.0.1:${serverOfFull.port}/`);
    await page.keyboard.press('Tab');
    expect(await focused()).toBe('INPUT');
    await page.keyboard.type('without a claim');
    await shows(3, 'without a claim');
    await until(async () => (await cards().count()) === 1);
    // A line comes each second: it must not take the focus away.
    expect(await focused()).toBe('INPUT');
    await page.keyboard.press('Control+a');
    await page.keyboard.type('nobody-is-called-so');
    await page.getByText('Nothing here matches “nobody-is-called-so”').waitFor();
    expect(await page.getByRole('heading', { level: 2 }).count()).toBe(0);
    await page.keyboard.press('Escape');
    await until(async () => (await cards().count()) === 4);
    await page.keyboard.press('Tab');
    expect(await focused()).toBe('SUMMARY');
    await page.keyboard.press('Enter');
    await shows(0, /job 1 train, since/);
  });

  test.each([
    ['wide, light', WIDE, 'light'],
    ['narrow, dark', NARROW, 'dark'],
  ] as const)(
    'has nothing that keeps people out, and fits the screen: %s',
    async (_, viewport, colorScheme) => {
      const violations = async () => {
        await page.evaluate(AXE);
        // biome-ignore lint/suspicious/noExplicitAny: axe is only there in the page
        const { violations } = await page.evaluate(() => (globalThis as any).axe.run());
        return violations.map(({ id, nodes }: { id: string; nodes: { html: string }[] }) => [
          id,
          nodes[0]?.html,
        ]);
      };
      await open(serverOfFull.url, { viewport, colorScheme });
      await shows(0, 'leased');
      await rowOf('Waiting', 'large').waitFor();
      expect(await violations()).toEqual([]);
      await more(0);
      await rowOf('Waiting', 'large').locator('summary').click();
      await shows(0, /job 1 train, since/);
      expect(await violations()).toEqual([]);
      await page.getByRole('button', { name: 'Log of job 1' }).click();
      await page.getByRole('dialog').getByText('No output yet.').waitFor();
      expect(await violations()).toEqual([]);
      await page.keyboard.press('Escape');
      const overhang = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
      expect(overhang).toBeLessThanOrEqual(0);
      await page.evaluate("location.hash = '#token=wrong'");
      await page.getByRole('alert').filter({ hasText: 'refuses' }).waitFor();
      expect(await violations()).toEqual([]);
      expect(complaints).toEqual([]);
    },
  );

  test('a page of another server on this machine can neither read the API nor frame the page', async () => {
    const server = await WebServer.start(machine);
    const own = `http://127.0.0.1:${server.port}/`;
    const other = createServer((_, response) =>
      response.writeHead(200, { 'content-type': 'text/html' }).end(`<iframe src="${own}"></iframe>`),
    );
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    try {
      await open(`http://127.0.0.1:${(other.address() as AddressInfo).port}/`);
      const read = (headers: string) =>
        page.evaluate(
          `fetch('${own}api/v1/gpus', { headers: ${headers} }).then(() => 'read', () => 'refused')`,
        );
      expect(await read(`{ authorization: 'Bearer ${server.token}' }`)).toBe('refused');
      expect(await read('{}')).toBe('refused');
      await until(
        () => complaints.some((text) => /frame-ancestors/.test(text)),
        () => complaints.join(),
      );
    } finally {
      other.close();
      other.closeAllConnections();
    }
  });
});
