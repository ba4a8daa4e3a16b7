// The words that shells offer, asked of the shells themselves.
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { COMMANDS } from '../../lib/cli/commands.ts';
import { command, python } from '../support/machine.ts';

const BASH_COMPLETION = '/usr/share/bash-completion/bash_completion';

function has(program: string): boolean {
  return spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
}

function run(words: string[], input = '', variables = env): string {
  const { status, stdout, stderr } = spawnSync(words[0] as string, words.slice(1), {
    env: variables,
    cwd: directory,
    input,
    encoding: 'utf8',
    timeout: 60_000,
  });
  if (status !== 0 || stderr !== '') throw new Error(`${words[0]} ended with ${status}: ${stderr}`);
  return stdout;
}

let directory = '';
let env: NodeJS.ProcessEnv = {};

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-completion-'));
  const bin = join(directory, 'bin');
  mkdirSync(bin);
  for (const name of ['zz-train', 'zz-other']) writeFileSync(join(bin, name), '#!/bin/sh\n', { mode: 0o755 });
  writeFileSync(
    join(bin, 'gpu-owner'),
    `#!/bin/sh\nGPU_OWNER_SIMULATE=1 exec ${process.execPath} ${command} "$@"\n`,
    {
      mode: 0o755,
    },
  );
  mkdirSync(join(directory, 'locks-here'));
  writeFileSync(join(directory, 'unmistakable.py'), '');
  env = {
    PATH: `${bin}:/usr/local/bin:/usr/bin:/bin`,
    HOME: directory,
    LC_ALL: 'C.UTF-8',
    TERM: 'dumb',
    GPU_OWNER_MACHINE_CONFIG: '/dev/null',
    GPU_OWNER_SIMULATE_DIR: join(directory, 'machines'),
    GPU_OWNER_NVML_LIBRARY: '/nonexistent', // no driver is needed
  };
  for (const shell of ['bash', 'zsh', 'fish']) {
    writeFileSync(join(directory, `script.${shell}`), run([process.execPath, command, 'completion', shell]));
  }
  const { GPU_OWNER_NVML_LIBRARY: _, ...driver } = env;
  run([join(bin, 'gpu-owner'), 'submit', '--name', 'my-job', 'true'], '', driver);
  run(['gpu-owner', 'wait', 'my-job']);
});

afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** Returns what a shell offers for each of the lines. */
type Complete = (lines: readonly string[]) => string[][];

/** Calls the function as readline does, with words split where it splits them. */
const bash: Complete = (lines) => {
  const calls = lines.map((line) => {
    const words = line.split(/ +|(?<==)|(?==)/).map((word) => `'${word}'`);
    return `COMP_WORDS=(${words.join(' ')}) COMP_CWORD=${words.length - 1} COMP_LINE='${line}' COMP_POINT=${line.length}
        ${'$'}(complete -p gpu-owner | sed 's/.*-F //; s/ .*//'); printf '%s\\n' "${'$'}{COMPREPLY[@]}" ===`;
  });
  writeFileSync(
    join(directory, 'ask.bash'),
    `source ${BASH_COMPLETION}\ncompopt() { :; }\nset -u\nsource script.bash\n${calls.join('\n')}`,
  );
  return segments(run(['bash', '--norc', 'ask.bash']), lines.length);
};

const fish: Complete = (lines) => {
  const calls = lines.map((line) => `complete -C '${line}'; echo ===`);
  writeFileSync(join(directory, 'ask.fish'), `source script.fish\n${calls.join('\n')}`);
  const offered = segments(run(['fish', '--no-config', 'ask.fish']), lines.length);
  return offered.map((words) => words.map((word) => word.split('\t')[0] as string));
};

/** Listens to what is offered to the line editor. */
const zsh: Complete = (lines) => {
  const log = join(directory, 'log.zsh');
  rmSync(log, { force: true });
  run(
    [python, join(import.meta.dirname, 'fixtures/type.py'), 'zsh', '-f', '-i'],
    [`. ${join(import.meta.dirname, 'fixtures/log-offers.zsh')}`, ...lines].join('\n'),
  );
  return segments(readFileSync(log, 'utf8'), lines.length);
};

function segments(text: string, count: number): string[][] {
  const parts = text.split('===\n');
  expect(parts).toHaveLength(count + 1);
  return parts
    .slice(0, -1)
    .map((part) => [...new Set(part.split('\n').filter((word) => word !== ''))].sort());
}

const OPTIONS = new Map<string, string[]>();

/** In the help of a command; where a value is attached (--wait[=DURATION]), both forms. */
function optionsOf(...words: string[]): string[] {
  const known = OPTIONS.get(words.join());
  if (known !== undefined) return known;
  const help = run([process.execPath, command, ...words, '--help', '--all']);
  const found = [...help.matchAll(/^ {2}(?:-\w, )?(--[\w-]+)(\[=)?/gm)];
  const options = found.flatMap(([, option, attached]) => [
    option as string,
    ...(attached ? [`${option}=`] : []),
  ]);
  OPTIONS.set(words.join(), options);
  return options;
}

const SHELLS: [string, Complete, string | null][] = [
  // Bash alone is asked below, at a prompt.
  [
    'bash with bash-completion',
    bash,
    existsSync(BASH_COMPLETION) ? null : 'bash-completion is not installed',
  ],
  ['zsh', zsh, has('zsh') ? null : 'zsh is not installed'],
  ['fish', fish, has('fish') ? null : 'fish is not installed'],
];

for (const [shell, complete, missing] of SHELLS) {
  describe.skipIf(missing !== null)(`${shell}${missing === null ? '' : ` (skipped: ${missing})`}`, () => {
    test('offers commands, options, values, files, and the command after `run`', () => {
      const [begun, option, value, file, first] = complete([
        'gpu-owner exp re',
        'gpu-owner run --placeh',
        'gpu-owner find --visible-devices=',
        'gpu-owner exp run --gpus 2 unmis',
        'gpu-owner run -n 2 zz-',
      ]);
      expect(begun).toEqual(['resume', 'retry']);
      expect(option).toEqual(['--placeholder']);
      expect((value as string[]).map((word) => word.replace(/^--[a-z-]+=/, ''))).toEqual(['index', 'uuid']);
      expect(file).toEqual(['unmistakable.py']);
      expect(first).toEqual(['zz-other', 'zz-train']);
    });

    // The words are the same for all shells.
    if (complete !== bash) return;

    test('offers commands, those of a group, and the options in the help of each', () => {
      const [all, group, begun, explained, ...options] = complete([
        'gpu-owner ',
        'gpu-owner exp ',
        'gpu-owner exp re',
        'gpu-owner help exp st',
        'gpu-owner run --',
        'gpu-owner exp worker --',
      ]);
      expect(all).toEqual([...Object.keys(COMMANDS), 'help'].sort());
      expect(group).toEqual(expect.arrayContaining(['manager', 'run', 'worker']));
      expect(begun).toEqual(['resume', 'retry']);
      expect(explained).toEqual(['status']);
      // zsh and fish show the form with '=' only once it is typed.
      const plain = (words: string[]) => [...new Set(words.map((word) => word.replace(/=$/, '')))].sort();
      expect(options.map(plain)).toEqual([optionsOf('run'), optionsOf('exp', 'worker')].map(plain));
    });

    test('completes files before the dashes, and behind them the command as it would be alone', () => {
      const [scenario, file, option, first, path, state] = complete([
        'gpu-owner simulate play unmis',
        'gpu-owner exp run --gpus 2 unmis',
        'gpu-owner exp run unmistakable.py --placeholder ',
        'gpu-owner exp run unmistakable.py --gpus 2 -- zz-',
        'gpu-owner exp run --dry-run -- ./bin/zz-t',
        'gpu-owner exp retry ',
      ]);
      expect(scenario).toEqual(['unmistakable.py']);
      expect(file).toEqual(['unmistakable.py']);
      expect(option).toEqual(['auto', 'keep', 'none']);
      expect(first).toEqual(['zz-other', 'zz-train']);
      expect((path as string[]).map((word) => word.replace(/^.*\//, ''))).toEqual(['zz-train']);
      expect(state).toEqual(expect.arrayContaining(['cancelled', 'failed']));
    });

    test('offers values, in both forms, and nothing where it knows none', () => {
      const [next, attached, short, waiting, machines, none, directories] = complete([
        'gpu-owner run --placeholder ',
        'gpu-owner find --visible-devices=',
        'gpu-owner hold -n ',
        'gpu-owner run --wait=1',
        'gpu-owner status --json --simulate h200',
        'gpu-owner run --max-power ',
        'gpu-owner run --chdir ',
      ]).map((words) => words.map((word) => word.replace(/^--[a-z-]+=/, '')));
      expect(next).toEqual(['auto', 'keep', 'none']);
      expect(attached).toEqual(['index', 'uuid']);
      expect(short).toEqual(['1', '2', '4', '8']);
      expect(waiting).toEqual(['10m', '1h']);
      expect(machines).toEqual(['h200x16', 'h200x8']);
      expect(none).toEqual([]);
      const here = (directories as string[]).map((name) => name.replace(/\/$/, ''));
      expect(here).toContain('locks-here');
      expect(here).not.toContain('unmistakable.py');
    });

    test('offers what `completion`, `help` and `simulate` take', () => {
      const [shells, help, simulate, lost] = complete([
        'gpu-owner completion ',
        'gpu-owner help st',
        'gpu-owner simulate s',
        'gpu-owner simulate set gpu=1 lost=o',
      ]);
      expect(shells).toEqual(['bash', 'fish', 'zsh']);
      expect(help).toEqual(['status']);
      expect(simulate).toEqual(['set', 'shell', 'show']);
      expect((lost as string[]).map((word) => word.replace(/^lost=/, ''))).toEqual(['off', 'on']);
    });

    test('the command after `run` is completed as it would be alone', () => {
      const [first, afterDashes, file, path, nothingOfOurs, own] = complete([
        'gpu-owner run -n 2 zz-',
        'gpu-owner run --wait=10m -- zz-',
        'gpu-owner run -- cat unmis',
        'gpu-owner run -n 1 ./bin/zz-t',
        'gpu-owner run -- zz-train --pl',
        'gpu-owner run -n 2 -- gpu-owner status --js',
      ]);
      expect(first).toEqual(['zz-other', 'zz-train']);
      expect(afterDashes).toEqual(['zz-other', 'zz-train']);
      expect(file).toEqual(['unmistakable.py']);
      expect((path as string[]).map((word) => word.replace(/^.*\//, ''))).toEqual(['zz-train']);
      expect(nothingOfOurs).toEqual([]);
      expect(own).toEqual(['--json']);
    });
  });
}

describe('typed at a prompt', () => {
  const typed = (shell: string[], setup: string, lines: string[]) => {
    const log = join(directory, `log.${shell[0]}`);
    rmSync(log, { force: true });
    writeFileSync(join(directory, 'setup'), setup.replaceAll('$LOG', log));
    run(
      [python, join(import.meta.dirname, 'fixtures/type.py'), ...shell],
      ['. ./setup', ...lines].join('\n'),
    );
    return readFileSync(log, 'utf8').split('\n').slice(0, -1);
  };
  const LINES = [
    'gpu-owner comp',
    'gpu-owner run --pla',
    'gpu-owner run --placeholder=ke',
    'gpu-owner run --chdir lock',
    'gpu-owner run -n 2 zz-tr',
    'gpu-owner run -- cat unmis',
    'gpu-owner run --devices unmis',
    'gpu-owner logs my',
    'gpu-owner submit --after-ok my',
  ];
  const COMPLETED = [
    'gpu-owner completion ',
    'gpu-owner run --placeholder ',
    'gpu-owner run --placeholder=keep ',
    'gpu-owner run --chdir locks-here/',
    'gpu-owner run -n 2 zz-train ',
    'gpu-owner run -- cat unmistakable.py ',
    'gpu-owner run --devices unmis',
    'gpu-owner logs my-job ',
    'gpu-owner submit --after-ok my-job ',
  ];

  test.skipIf(!has('bash'))('bash completes a command line', () => {
    const setup = `bind 'set bell-style none'
      dump() { printf '%s\\n' "$READLINE_LINE" >>$LOG; }; bind -x '"\\C-xd": dump'
      source script.bash; PS1='READY>'`;
    expect(typed(['bash', '--norc', '-i'], setup, LINES)).toEqual(COMPLETED);
  });

  test.skipIf(!has('zsh'))('zsh completes a command line, with the script in a file of fpath', () => {
    mkdirSync(join(directory, 'functions'));
    writeFileSync(join(directory, 'functions/_gpu-owner'), readFileSync(join(directory, 'script.zsh')));
    chmodSync(join(directory, 'functions'), 0o755);
    const setup = `fpath=(${join(directory, 'functions')} $fpath); autoload -Uz compinit; compinit -u -D
      PS1='READY>'; setopt no_beep; bindkey -e
      dump() { print -r -- "$BUFFER" >>$LOG }; zle -N dump; bindkey '^Xd' dump`;
    const trimmed = (lines: string[]) => lines.map((line) => line.trimEnd());
    const expected = trimmed(COMPLETED).map((line) => line.replace('--placeholder$', '--placeholder'));
    const got = trimmed(typed(['zsh', '-f', '-i'], setup, LINES)).map((line) => line.replace(/=$/, ''));
    expect(got).toEqual(expected);
  });
});

test('completion prints no error, whatever is typed and however broken the machine is', () => {
  mkdirSync(join(directory, 'broken/gpu-owner'), { recursive: true });
  writeFileSync(join(directory, 'broken/gpu-owner/config.yaml'), 'placeholder: [');
  const variables = { ...env, XDG_CONFIG_HOME: join(directory, 'broken'), HOME: '/nonexistent' };
  const lines = ['', '-- run --toString=', '-- help constructor x', '-- logs '];
  for (const line of lines) {
    const words = ['__complete', 'bash', ...line.split(' ').filter((word, i) => word !== '' || i > 0)];
    const { status, stderr } = spawnSync(process.execPath, [command, ...words], {
      env: variables,
      encoding: 'utf8',
    });
    expect({ line, status, stderr }).toEqual({ line, status: 0, stderr: '' });
  }
});

test.skipIf(!has('shellcheck'))('shellcheck has nothing to say about the script for bash', () => {
  expect(run(['shellcheck', '--shell=bash', 'script.bash'])).toBe('');
});

test.each([[['bsh']]])('completion %j is refused', (words) => {
  const { status, stderr } = spawnSync(process.execPath, [command, 'completion', ...words], {
    encoding: 'utf8',
  });
  expect(stderr).toMatch(/^gpu-owner: no completion for .*; did you mean 'bash'/);
  expect(status).toBe(64);
});
