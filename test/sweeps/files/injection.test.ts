// Lines made at random, values made to break out: no shell may ever run what a value says.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { parseShellLine, type ShellLine } from '../../../lib/sweeps/files/command.ts';

const PIECES = [
  ...[
    '{a}',
    '{a}',
    '{a}',
    '"',
    "'",
    ' ',
    '\\',
    'a',
    '$x',
    ';',
    '|',
    '(',
    ')',
    '#',
    '{{',
    '}}',
    '`',
    '$(',
    '$((',
    '))',
    '$',
    '$\\\n',
  ],
  ...[
    '<<',
    '<<E',
    'E',
    '\n',
    '\\\n',
    '=',
    '&',
    'echo ',
    '[[',
    ']]',
    '((',
    '!',
    '~',
    '${{',
    'case x in x)',
    ' esac',
    'if ',
    '<',
    '>',
  ],
];
const VALUES = [
  ...[
    "';touch GOT;'",
    '";touch GOT;"',
    '$(touch GOT)',
    '`touch GOT`',
    ';touch GOT;',
    '\ntouch GOT\n',
    "\\';touch GOT;'",
  ],
  ...['a[$(touch GOT)]', ')touch GOT;(', `'"'"';touch GOT;#`, '\nE\ntouch GOT\n'],
];
const LINES = process.env.GPU_OWNER_SOAK ? 20_000 : 300;
const SHELLS = [
  ['sh', '-c'],
  ...(spawnSync('bash', ['-c', ':']).status === 0 ? [['bash', '--posix', '-c']] : []),
];

let directory = '';
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-injection-'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

test(`no value of ${LINES} command lines makes a shell run anything`, { timeout: 600_000 }, () => {
  let state = Number(process.env.GPU_OWNER_TEST_SEED ?? 1);
  const pick = <T>(items: readonly T[]): T => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return items[Math.floor((state / 2 ** 32) * items.length)] as T;
  };
  for (let tried = 0; tried < LINES; ) {
    const line =
      pick(['', 'echo ']) + Array.from({ length: pick([3, 5, 7, 9]) }, () => pick(PIECES)).join('');
    const parsed = accepted(line);
    if (parsed === null || parsed.names.length === 0) continue;
    tried++;
    const value = pick(VALUES);
    const [shell = 'sh', ...args] = pick(SHELLS);
    const options = {
      cwd: directory,
      env: { PATH: '/usr/bin:/bin' },
      timeout: 30_000,
      stdio: 'ignore',
    } as const;
    spawnSync(shell, [...args, parsed.fill(() => value)], options);
    const files = readdirSync(directory);
    expect({ line, value, shell, got: files.includes('GOT') }).toEqual({ line, value, shell, got: false });
    for (const name of files) rmSync(join(directory, name), { recursive: true });
  }
});

function accepted(line: string): ShellLine | null {
  try {
    return parseShellLine(line, (why) => new Error(why));
  } catch {
    return null;
  }
}
