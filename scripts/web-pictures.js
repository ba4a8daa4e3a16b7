// Takes the pictures of `web` in docs/status.md: starts `web` on a simulated machine, and opens its page in a real Chromium.
//
// Usage: node scripts/web-pictures.js [DIRECTORY]   (default: docs/pictures)
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { chromium } from 'playwright-core';
import { enterLab, fillLab, fillQueue, Lab, PEOPLE, pause } from './people.js';

enterLab(import.meta.filename);
const target = resolve(process.argv[2] ?? join(dirname(import.meta.dirname), 'docs/pictures'));
const PICTURES = [
  { name: 'web-wide', viewport: { width: 1440, height: 900 }, colorScheme: 'light', fullPage: true },
  { name: 'web-narrow', viewport: { width: 390, height: 760 }, colorScheme: 'dark', fullPage: false },
];
const SERVER = '[gpu]\nname = NVIDIA A100-SXM4-80GB\ncount = 8\n';
/** Makes up the day before, as a real one would take 24 hours. */
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
      gpu.spanSeconds = 86_400;
      gpu.leasedSeconds = 3 * gpu.leasedPercent.reduce((sum, percent) => sum + percent, 0);
    }
  await route.fulfill({ response, json: history });
}

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

/** As many GPU hours as four people have in a month. */
async function showMonth(route) {
  const response = await route.fetch();
  const days = Array.from({ length: 30 }, (_, i) =>
    new Date(Date.now() - (29 - i) * 86_400_000).toISOString().slice(0, 10),
  );
  const hours = (i) =>
    days.map((_, day) => Math.max(0, (20 - 4 * i) * (1.1 + Math.sin(day * (1.3 + i) + i))));
  const users = PEOPLE.map((user, i) => ({ user, uid: i, gpuHours: hours(i) }));
  await route.fulfill({ response, json: { days, users } });
}

mkdirSync(target, { recursive: true });
const lab = new Lab();
try {
  const server = lab.machine('server', lab.write('server.conf', SERVER));
  const people = PEOPLE.map((name) => lab.person(name, server));
  fillLab(people);
  await pause(15_000);
  fillQueue(people);
  // Until the notebook's GPU counts as idle.
  await pause(62_000);
  const child = people[0].start('gpu-owner', 'web');
  const url = await new Promise((done) =>
    child.stdout.on('data', (text) => done(/^http:\S+/.exec(String(text))?.[0])),
  );
  await pause(3_000);
  const executablePath = process.env.GPU_OWNER_TEST_BROWSER ?? '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  for (const { name, viewport, colorScheme, fullPage } of PICTURES) {
    const page = await browser.newPage({ viewport, colorScheme });
    await page.route('**/api/v1/history', showDay);
    await page.route('**/api/v1/usage', showMonth);
    await page.goto(url);
    await page.getByRole('heading', { name: 'GPU 7' }).waitFor();
    await page.waitForTimeout(2_000);
    writeFileSync(join(target, `${name}.webp`), await asWebP(browser, await page.screenshot({ fullPage })));
    await page.close();
  }
  await browser.close();
} finally {
  await lab.close();
}
