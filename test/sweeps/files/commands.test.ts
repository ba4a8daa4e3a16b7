import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { splitShellWords } from '../../../lib/sweeps/files/command.ts';
import type { SweepSource } from '../../../lib/sweeps/files/index.ts';
import { open, project, read, refusal, tasks } from './sweeps.ts';

const P = 'p: {combinations: [{a: ["x y"]}]}\n';
const command = async (text: string, source: Partial<SweepSource> = {}) =>
  (await tasks(text, source))[0]?.command;

describe('the command', () => {
  test('is split into words first and filled in after', async () => {
    expect(await command(`command: python t.py --a {a} 'b {a}'\n${P}`)).toEqual({
      words: ['python', 't.py', '--a', 'x y', 'b x y'],
    });
    expect(await command(`command: [python, "{a} z", 1.0]\n${P}`)).toEqual({
      words: ['python', 'x y z', '1.0'],
    });
  });

  test('behind -- comes before that of the file', async () => {
    expect(await command(`command: other\n${P}`, { command: ['echo', '{a}', '{{}}', '$HOME | x'] })).toEqual({
      words: ['echo', 'x y', '{}', '$HOME | x'],
    });
  });

  test('for a shell is one line', async () => {
    expect(await command(P, { command: ['echo', '{a}', '>', 'f'], shell: true })).toEqual({
      shell: "echo 'x y' > f",
    });
    expect(await command(`shell: yes\ncommand: 'echo {a} | cat'\n${P}`)).toEqual({
      shell: "echo 'x y' | cat",
    });
  });

  test('may have the phase and the output directory in it', async () => {
    expect(await command(P, { command: ['x', '{phase}', '{output_dir}/log'] })).toEqual({
      words: ['x', 'p', 'results_p/log'],
    });
  });

  test('may be missing, which is an error where tasks need one', async () => {
    expect((await read(P)).commandless?.message).toContain(
      "s.yaml:1: phase 'p' has no command to run; put it at the end, such as -- python",
    );
  });

  test('is each file’s own', async () => {
    const path = project({
      'a.yaml': `command: one\n${P}`,
      'b.yaml': `command: two\n${P.replace('p:', 'q:')}`,
    });
    const sweep = await open({ files: [join(path, 'a.yaml'), join(path, 'b.yaml')] });
    expect(Array.from(sweep.tasks(), (task) => task.command)).toEqual([
      { words: ['one'] },
      { words: ['two'] },
    ]);
  });

  test.each([
    [
      P,
      { command: ['x', '{size}'] },
      "the command line: the command, in phase 'p': {size} names no parameter",
    ],
    [P, { command: ['x', '{task_id}'] }, "{task_id} isn't known before the task is in the queue"],
    [P, { command: [''] }, 'the command: it is empty'],
    [P, { command: ['x', '{'] }, 'a single {'],
    [
      `command: x {b}\n${P}`,
      {},
      "s.yaml:1: the command, in phase 'p': {b} names no parameter; the known ones are {a}, {seed}",
    ],
    [
      'command: "{a}"\np: {combinations: [{a: [""]}]}\n',
      {},
      "its first word, '{a}', becomes empty when parameters are filled in",
    ],
    [`command: 'a "b'\n${P}`, {}, 's.yaml:1: the command: the quote'],
    [`command: a | b\n${P}`, {}, 's.yaml:1: the command: only a shell gives | a meaning'],
    [`command: "a\\nb"\n${P}`, {}, 'a second line begins'],
  ])('%j with %j is refused', async (text, source, message) => {
    expect(await refusal(read(text, source))).toContain(message);
  });
});

const refuse = (why: string) => new Error(why);

describe('a command line', () => {
  const LINES = [
    'a b  c\td',
    `'a b' "c d" e\\ f`,
    `a'b'"c"d`,
    `'' ""`,
    `"a\\"b\\\\c\\d\\$"`,
    `'a\\b'`,
    'a#b # c d',
    '# all of it',
    'x[0]=1 a=[1,2] lr=[1e-3,1e-4] [x] [a_b] ] [',
    `'*.x' "?" \\* a'*'b "[0-9]"`,
    'env A=1 b A=2',
    `--x='{"a": [1, 2]}'`,
    'a \\\n b',
    '"a\\\nb"',
    `"it's" 'say "x"'`,
    '"5$" 5$ "$"',
    'é "\u{1f600}"',
  ];

  test.each(LINES)('is split into words as sh does: %j', (line) => {
    const { stdout } = spawnSync('sh', ['-c', `set -f; printf '%s\\0' ${line}\n`], { encoding: 'utf8' });
    const theirs = stdout.split('\0').slice(0, -1);
    const ours = splitShellWords(line, refuse);
    // printf without arguments prints its format once.
    expect(ours.length === 0 ? [''] : ours).toEqual(theirs);
  });

  test.each([
    'a | b',
    'a;b',
    'a && b',
    'a > b',
    'a < b',
    '(a)',
    'a `b`',
    'a $b',
    'a ${b}',
    'a $(b)',
    'a "$b"',
    'a "`b`"',
    "a $'b'",
    '~/a',
    'ls *.txt',
    'a?',
    'cat part[0-9].csv',
    'cat [a-c]*',
    'A=1 b',
    '  LR=0.1 python3 t.py',
    'PATH+=:x b',
    'A=',
    "'a",
    '"a',
    'a\\',
    'a\nb',
  ])('%j is refused', (line) => {
    expect(() => splitShellWords(line, refuse)).toThrow();
    if (!/^'|^"|\\$|\n/.test(line)) expect(() => splitShellWords(line, refuse)).toThrow('--shell');
    // As all that a shell does.
    if (/[*?=]|\[/.test(line)) expect(() => splitShellWords(line, refuse)).toThrow(/only a shell/);
  });
});

describe('a command line for the shell', () => {
  const NASTY = ["it's", '$(touch x) `x`', '"', "\\'", '$HOME; exit 7', '*\n#', '', "'\"'", 'é'];
  const LINES = [
    `printf %s {a}`,
    `printf %s ""{a}''`,
    `printf "%s" {a}`,
    `true && printf %s {a} | cat`,
    `x={a}; printf %s "$x"`,
    'printf %s \\\n  {a}',
    `(printf %s {a})`,
    `if true; then printf %s {a}; fi`,
  ];

  test.each(LINES)('gets values as they are, whatever they have in them: %s', async (line) => {
    const values = NASTY.map((value) => JSON.stringify(value)).join(', ');
    const found = await tasks(`p: {combinations: [{a: [${values}]}]}`, { command: [line], shell: true });
    const printed = found.map(({ command: each }) => {
      const shell = 'shell' in each ? each.shell : '';
      return spawnSync('sh', ['-c', shell], { encoding: 'utf8', cwd: '/', env: { PATH: '/usr/bin:/bin' } })
        .stdout;
    });
    expect(printed).toEqual(NASTY);
  });

  test.each([
    ['echo `echo {a}`', "can't be quoted reliably after `"],
    ['echo "x {a}"', '{a} stands in quotes'],
    ["echo 'x {a}'", '{a} stands in quotes'],
    ['echo "$(echo {a})"', '{a} stands in quotes'],
    ['echo $(echo {a})', "can't be quoted reliably after $("],
    ['cat <<E\n{a}\nE', "can't be quoted reliably after <<"],
    ['((x = {a}))', "can't be quoted reliably after (("],
    ["echo $'x'{a}", "can't be quoted reliably after $'"],
    ['echo # {a}', "can't be quoted reliably after #"],
    ['echo \\{a}', '{a} after \\: write {a}'],
    ['echo $\\\n{a}', '{a} after $: write {a}'],
    ['echo ${a}', '{a} after $: write {a} for the parameter, ${{...}} for a variable'],
  ])('%j is refused', async (line, message) => {
    expect(await refusal(read(P, { command: [line], shell: true }))).toContain(message);
  });

  test("has doubled braces around the shell's own variables", async () => {
    const [task] = await tasks(P, { command: ['x=1; printf %s "${{x}}" {a}'], shell: true });
    expect(task?.command).toEqual({ shell: `x=1; printf %s "\${x}" 'x y'` });
  });
});
