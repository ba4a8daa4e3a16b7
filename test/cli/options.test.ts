import { describe, expect, expectTypeOf, test } from 'vitest';
import { WAIT_BY_DEFAULT } from '../../lib/cli/claim-options.ts';
import { waitOption } from '../../lib/cli/claim-values.ts';
import { type Commands, optionsOf } from '../../lib/cli/command.ts';
import type { OptionTable } from '../../lib/cli/command-line.ts';
import { COMMANDS } from '../../lib/cli/commands.ts';
import { helpOf, helpOfGroup, mainHelp } from '../../lib/cli/help.ts';
import { parse } from '../../lib/cli/parser.ts';

const TABLE = {
  count: { short: 'n', value: 'N', help: 'count' },
  follow: { short: 'f', help: 'follow' },
  only: { value: 'LIST', isRepeatable: true, help: 'use only these' },
  ...WAIT_BY_DEFAULT,
} satisfies OptionTable;

function values(...args: string[]) {
  return parse(args, TABLE).values;
}

describe('the command line', () => {
  test('gives each option the type that its table says', () => {
    const { count, follow, only, wait, help } = values('-f');
    expectTypeOf({ count, follow, only, wait, help }).toEqualTypeOf<{
      count: string | undefined;
      follow: true | undefined;
      only: string[] | undefined;
      wait: string | true | undefined;
      help: true | undefined;
    }>();
    // @ts-expect-error: there is no such option
    expect(values('-f').folow).toBeUndefined();
  });

  test.each<[string[], object]>([
    [['--count', '2'], { count: '2' }],
    [['--count=2'], { count: '2' }],
    [['--count='], { count: '' }],
    [['--count=a=b'], { count: 'a=b' }],
    [['-n', '2'], { count: '2' }],
    [['-n2'], { count: '2' }],
    [['-n', '-1'], { count: '-1' }],
    [['-n', '-'], { count: '-' }],
    [['-fn', '2'], { follow: true, count: '2' }],
    [['-n', '1', '-n', '2'], { count: '2' }],
    [['--only', 'a', '--only=b'], { only: ['a', 'b'] }],
    [['--wait'], { wait: true }],
    [['--wait=10m'], { wait: '10m' }],
    [['--wait=10m', '--wait'], { wait: '10m' }],
    [['--help'], { help: true }],
  ])('%j has the expected values', (args, expected) => {
    expect(values(...args)).toEqual(expected);
  });

  test.each<[string[], RegExp]>([
    [['--count'], /^--count needs a value; see --help$/],
    [['-fn'], /^-n needs a value; see --help$/],
    [['-n', '--follow'], /^-n needs a value, but '--follow' follows; see --help$/],
    [['--follow=1'], /--follow takes no value/],
    [['--folow'], /^there is no option --folow; did you mean --follow\?$/],
    [['-fx'], /^there is no option -x; see --help$/],
    [['--toString'], /^there is no option --toString/],
  ])('%j is refused', (args, message) => {
    expect(() => values(...args)).toThrow(message);
  });

  test('--wait=DURATION limits the wait', () => {
    expect(waitOption(values('--wait=5s'), false)).toEqual({ maxWait: '5s' });
  });
});

describe('words behind options', () => {
  test('a command line begins at the first word or at --, and is left alone', () => {
    expect(parse(['-f', 'echo', '--count', '--'], TABLE, 'word')).toMatchObject({
      values: { follow: true },
      command: ['echo', '--count', '--'],
    });
    expect(parse(['-n', '2', '--', '-f'], TABLE, 'word').command).toEqual(['-f']);
    const both = parse(['a.yaml', '-f', 'b.yaml', '--', 'echo', '-n'], TABLE, 'dashes');
    expect(both).toMatchObject({ positionals: ['a.yaml', 'b.yaml'], command: ['echo', '-n'] });
    expect(parse(['a', '--', '-n'], TABLE)).toMatchObject({ positionals: ['a', '-n'], command: [] });
  });
});

test('help texts are verb phrases in lower case without a full stop, and fit a line of shells', async () => {
  const texts = await textsOf(COMMANDS);
  expect(texts.length).toBeGreaterThan(50);
  for (const text of texts) expect(text).toMatch(/^[a-z].*[^.]$/);
});

async function textsOf(commands: Commands): Promise<string[]> {
  const all = await Promise.all(
    Object.values(commands).map(async ({ summary, load }) => {
      const command = await load();
      if ('commands' in command) return [summary, ...(await textsOf(command.commands))];
      if (!('groups' in command)) return [summary];
      return [summary, ...Object.values(optionsOf(command.groups)).map(({ help }) => help)];
    }),
  );
  return all.flat();
}

/** The help of each command, and of each of a group. */
async function helpOfAll(called: string, commands: Commands): Promise<string[]> {
  const found = Object.entries(commands).map(async ([name, { load }]) => {
    const command = await load();
    const words = `${called} ${name}`;
    if ('commands' in command)
      return [helpOfGroup(words, command), ...(await helpOfAll(words, command.commands))];
    return [helpOf(words, command, false), helpOf(words, command, true)];
  });
  return (await Promise.all(found)).flat();
}

test('help says how each command is used, and fits 80 columns', async () => {
  const pages = [mainHelp(COMMANDS), ...(await helpOfAll('gpu-owner', COMMANDS))];
  expect(pages.length).toBeGreaterThan(60);
  for (const page of pages) {
    expect(page).toMatch(/^Usage: gpu-owner /);
    for (const line of page.split('\n')) expect([line, line.length <= 80]).toEqual([line, true]);
  }
});
