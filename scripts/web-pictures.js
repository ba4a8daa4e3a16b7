// Takes the pictures of docs/web.md: starts `web` on a simulated machine, and opens its page in a real Chromium.
//
// Usage: node scripts/web-pictures.js [DIRECTORY]   (default: docs/pictures)
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { chromium } from 'playwright-core';

const root = dirname(import.meta.dirname);
const command = join(root, 'bin/gpu-owner.cjs');
const target = resolve(process.argv[2] ?? join(root, 'docs/pictures'));
const place = mkdtempSync(join(tmpdir(), 'gpu-owner-pictures-'));
const PICTURES = [
  { name: 'web-wide', viewport: { width: 1280, height: 720 }, colorScheme: 'light', fullPage: true },
  { name: 'web-narrow', viewport: { width: 390, height: 760 }, colorScheme: 'dark', fullPage: false },
  {
    name: 'web-charts',
    viewport: { width: 1280, height: 420 },
    colorScheme: 'dark',
    fullPage: false,
    isOfCharts: true,
  },
];
const SERVER = '[gpu]\nname = NVIDIA A100-SXM4-80GB\ncount = 8\n';
/** Computes until it is killed. */
const TRAIN = `import os, subprocess, sys
gpu = os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]
words = [sys.argv[1], '--utilization', sys.argv[2], '--name', 'python']
subprocess.run([${JSON.stringify(command)}, 'simulate', 'occupy', gpu, '--memory', *words], stdin=os.pipe()[0])
`;

const env = { ...process.env };
for (const key of Object.keys(env)) if (/^(GPU_OWNER|XDG)_/.test(key)) delete env[key];
Object.assign(env, {
  GPU_OWNER_SIMULATE: join(place, 'server.conf'),
  GPU_OWNER_SIMULATE_DIR: place,
  GPU_OWNER_MACHINE_CONFIG: '/dev/null',
  XDG_CONFIG_HOME: join(place, 'none'),
  XDG_STATE_HOME: join(place, 'state'),
  NODE_EXTRA_CA_CERTS: '',
});
const children = [];

function start(...words) {
  const child = spawn(command, words, { env, stdio: ['pipe', 'pipe', 'inherit'] });
  children.push(child);
  return child;
}

function submit(options, ...words) {
  const args = ['submit', ...options, '--', 'python3', 'train.py', ...words];
  const { status, stderr } = spawnSync(command, args, { env, cwd: place, encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
}

/** Makes up the day before: nobody waits 24 hours for a picture. */
async function showDay(route) {
  const response = await route.fetch();
  const history = await response.json();
  for (const { gpus } of history.machines)
    for (const [i, gpu] of gpus.entries()) {
      const isLeased = (slot) => Math.sin(slot / (17 + 5 * i) + i) > -0.3 * (i % 3);
      const wave = (slot, of) => Math.round(of * (0.85 + 0.15 * Math.sin(slot * (1.7 + i))));
      // The last slot is what the cards show.
      for (let slot = 20 * (i % 2); slot < 287; slot++) {
        const isOn = isLeased(slot) && i < 7;
        gpu.leasedPercent[slot] = isOn ? 100 : 0;
        gpu.utilizationPercent[slot] = isOn ? wave(slot, 95 - 8 * i) : 0;
        gpu.memoryPercent[slot] = isOn ? 78 - 9 * i : 1;
      }
    }
  await route.fulfill({ response, json: history });
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Pictures of this kind are a third as large as PNG, and the browser can make them. */
async function asWebP(browser, png) {
  const page = await browser.newPage();
  const convert = `(async () => {
    const image = new Image();
    image.src = 'data:image/png;base64,${png.toString('base64')}';
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height });
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/webp', 0.6);
  })()`;
  const url = await page.evaluate(convert);
  await page.close();
  return Buffer.from(url.slice(url.indexOf(',') + 1), 'base64');
}

mkdirSync(target, { recursive: true });
try {
  writeFileSync(join(place, 'server.conf'), SERVER);
  writeFileSync(join(place, 'train.py'), TRAIN);
  submit(
    ['-n', '2', '--devices', '0,1', '--name', 'pretrain', '--note', 'run 7 of 12', '--for', '6h'],
    '61GiB',
    '93',
  );
  submit(['--devices', '2', '--name', 'finetune', '--note', 'lr 3e-5'], '38GiB', '71');
  submit(['--devices', '3', '--name', 'notebook'], '6GiB', '0');
  start('simulate', 'occupy', '5', '--name', 'python', '--memory', '22GiB', '--utilization', '84');
  await pause(3_000);
  submit(['-n', '5', '--name', 'sweep', '--note', 'waits for five'], '1GiB', '0');
  const server = start('web');
  const url = await new Promise((done) =>
    server.stdout.on('data', (text) => done(/^http:\S+/.exec(String(text))?.[0])),
  );
  await pause(3_000);
  const executablePath = process.env.GPU_OWNER_TEST_BROWSER ?? '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  for (const { name, viewport, colorScheme, fullPage, isOfCharts = false } of PICTURES) {
    const page = await browser.newPage({ viewport, colorScheme });
    await page.route('**/api/v1/history', showDay);
    await page.goto(url);
    await page.getByRole('img', { name: /^GPU 7/ }).waitFor();
    await page.waitForTimeout(2_000);
    const shown = isOfCharts ? page.getByRole('region', { name: 'Last 24 hours' }) : page;
    writeFileSync(join(target, `${name}.webp`), await asWebP(browser, await shown.screenshot({ fullPage })));
    await page.close();
  }
  await browser.close();
} finally {
  const { stdout } = spawnSync(command, ['jobs', '--json'], { env, encoding: 'utf8' });
  const ids = JSON.parse(stdout || '[]').flatMap(({ id, ended }) =>
    id === null || ended !== null ? [] : [String(id)],
  );
  if (ids.length > 0) spawnSync(command, ['cancel', '--grace', '0s', ...ids], { env });
  for (const child of children) child.kill('SIGKILL');
  rmSync(place, { recursive: true, force: true });
}
