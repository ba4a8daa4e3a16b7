// The animation of the README, docs/pictures/session.svg: the script that records it, and what the file shows when.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { openBrowser, whyNoBrowser } from '../support/browser.ts';
import { whyUnchanged } from '../support/changes.ts';
import { root } from '../support/machine.ts';

const MAX_BYTES = 150_000;

/** A recording, as texts and when they are seen. */
class Recording {
  readonly durationMs: number;
  readonly #groups: { from: number; to: number; isStill: boolean; text: string }[];

  constructor(svg: string) {
    this.durationMs = Number(/animation-duration:(\d+)ms/.exec(svg)?.[1]);
    this.#groups = [...svg.matchAll(/<g(?: class="f( s)? (a\d+)")?>(.*?)<\/g>/g)].map(
      ([, still, name, body = '']) => {
        const rule = new RegExp(`@keyframes ${name}\\{(.*?)\\}\\}`).exec(svg)?.[1] ?? '';
        const [, from = '0'] = /([\d.]+)%\{visibility:visible/.exec(rule) ?? [];
        const [, to = '100'] = /([\d.]+)%\{visibility:hidden\}?$/.exec(rule) ?? [];
        const text = [...body.matchAll(/<text [^>]*>(.*?)<\/text>/g)].map(([, each]) => each).join(' ');
        return {
          from: Number(from),
          to: to === '0' ? 100 : Number(to),
          isStill: name === undefined || still !== undefined,
          text,
        };
      },
    );
  }

  at(percent: number): string {
    return this.#groups
      .filter(({ from, to }) => from <= percent && percent < to)
      .map(({ text }) => text)
      .join('\n');
  }

  get still(): string {
    return this.#groups
      .filter(({ isStill }) => isStill)
      .map(({ text }) => text)
      .join('\n');
  }
}

/** The story: it begins with the other user's job, one of two jobs waits, and runs when the first one was killed. */
function tellsTheStory(svg: string): Recording {
  const shown = new Recording(svg);
  expect(shown.at(0)).toMatch(/vision/);
  expect(shown.at(0)).not.toMatch(/submit|llama/);
  for (const text of [
    'submit -n 3 --name llama',
    'submit -n 2 --name eval',
    '1 llama',
    'WAITING',
    '4 leased  1 waiting',
  ]) {
    expect(shown.still).toContain(text);
  }
  expect(shown.still).not.toMatch(/kill -9|failed/);
  const end = shown.at(99.99);
  expect(end).toMatch(/kill -9 \d+/);
  expect(end).toMatch(/1 llama +failed[\s\S]*exit code 137[\s\S]*2 eval +running/);
  expect(end).toMatch(/1 free, 3 leased/);
  expect(end).not.toContain('WAITING');
  return shown;
}

describe('docs/pictures/session.svg', () => {
  const svg = readFileSync(join(root, 'docs/pictures/session.svg'), 'utf8');

  test('tells the story in 20 to 30 seconds', () => {
    const { durationMs } = tellsTheStory(svg);
    expect(durationMs).toBeGreaterThanOrEqual(20_000);
    expect(durationMs).toBeLessThanOrEqual(30_000);
  });

  test('is small, has no scripts, and nothing from elsewhere', () => {
    expect(svg.length).toBeLessThan(MAX_BYTES);
    expect(svg).not.toMatch(/<script|<foreignObject|href=|@import|url\(/);
  });

  test.skipIf(whyNoBrowser !== '')(
    `moves in a browser, and stands still for readers who want that${whyNoBrowser}`,
    async () => {
      const browser = await openBrowser();
      try {
        const seen = async (reducedMotion: 'reduce' | 'no-preference', percent: number) => {
          const page = await browser.newPage({ reducedMotion });
          await page.setContent(svg);
          // As text, since the code for a page has other types than this one.
          return page.evaluate(`(() => {
            for (const animation of document.getAnimations()) {
              animation.pause();
              animation.currentTime = ${percent / 100} * animation.effect.getTiming().duration;
            }
            return [...document.querySelectorAll('text')]
              .filter((each) => getComputedStyle(each).visibility === 'visible')
              .map((each) => each.textContent).join('\\n');
          })()`) as Promise<string>;
        };
        expect(await seen('no-preference', 0)).not.toContain('WAITING');
        expect(await seen('no-preference', 99)).toMatch(/failed[\s\S]*exit code 137/);
        const still = await seen('reduce', 99);
        expect(still).toContain('WAITING');
        expect(still).not.toContain('exit code 137');
      } finally {
        await browser.close();
      }
    },
  );
});

const unchanged = whyUnchanged(['scripts/recording.js', 'scripts/terminal.js', 'docs/pictures/session.svg']);

test.skipIf(unchanged)(`scripts/recording.js records that story${unchanged ? `: ${unchanged}` : ''}`, () => {
  const place = mkdtempSync(join(tmpdir(), 'gpu-owner-recorded-'));
  try {
    const file = join(place, 'session.svg');
    const { status, stderr } = spawnSync(
      process.execPath,
      [join(root, 'scripts/recording.js'), '--fast', file],
      {
        encoding: 'utf8',
        timeout: 110_000,
      },
    );
    expect(stderr).toBe('');
    expect(status).toBe(0);
    tellsTheStory(readFileSync(file, 'utf8'));
  } finally {
    rmSync(place, { recursive: true });
  }
});
