// A real Chromium, where there is one.
import { existsSync } from 'node:fs';
import { type Browser, chromium } from 'playwright-core';

const PATHS = [process.env.GPU_OWNER_TEST_BROWSER, '/usr/bin/chromium', '/usr/bin/google-chrome'];
const executable = PATHS.find((path) => path !== undefined && existsSync(path));

/** Why tests with a browser are skipped; '' where they aren't. */
export const whyNoBrowser = executable === undefined ? ' (skipped: chromium is not installed)' : '';

export function openBrowser(args: string[] = []): Promise<Browser> {
  // Chromium's sandbox needs user namespaces, which root and containers lack. The browser only sees pages of ours.
  return chromium.launch({
    executablePath: executable as string,
    args: ['--no-sandbox', '--disable-gpu', ...args],
  });
}
