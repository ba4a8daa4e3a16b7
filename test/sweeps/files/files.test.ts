import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type TaskSpec, taskId } from '../../../lib/sweeps/task/index.ts';
import { open, project, read, refusal, tasks } from './sweeps.ts';

const SEEDS = `
defaults:
  dataset: mnist
  learning_rate: 1e-3
  output_dir: results_{dataset}
exp1_vary_width:
  dataset: cifar
  combinations:
    - width_factor: [1, 2]
    - seed: [42, 43]
`;

describe('a sweep file', () => {
  test('becomes the product over the defaults, the first key slowest', async () => {
    const found = await tasks(SEEDS);
    expect(found.map(({ parameters: { width_factor, seed } }) => [width_factor, seed])).toEqual([
      [1, 42],
      [1, 43],
      [2, 42],
      [2, 43],
    ]);
    expect(Object.keys(found[0]?.parameters ?? {})).toEqual([
      'dataset',
      'learning_rate',
      'width_factor',
      'seed',
    ]);
    expect(
      found.every(
        ({ phase, outputDirectory }) => phase === 'exp1_vary_width' && outputDirectory === 'results_cifar',
      ),
    ).toBe(true);
  });

  test('multiplies several keys in one entry of combinations, too', async () => {
    const found = await tasks('p: {combinations: [{a: [1, 2], b: [3, 4]}, {c: [5]}]}');
    expect(found.map(({ parameters: { a, b, c } }) => `${a}${b}${c}`)).toEqual(['135', '145', '235', '245']);
    expect(await tasks('p: {combinations: {a: [1, 2], b: [3, 4], c: [5]}}')).toEqual(found);
  });

  test('has its phases in their order, each with its own directory', async () => {
    const found = await tasks('b: {combinations: [{a: [1]}]}\na: {combinations: [{a: [1]}]}\n');
    expect(found.map(({ outputDirectory }) => outputDirectory)).toEqual(['results_b', 'results_a']);
  });

  test('may have lists and maps as values', async () => {
    const [task] = await tasks(
      'p: {layers: [64, 64], opt: {lr: 1.0}, combinations: [{shape: [[1, 2], [3]]}]}',
    );
    expect(task?.parameters).toMatchObject({ layers: [64, 64], shape: [1, 2] });
  });

  test('may have references and merges, which are followed as PyYAML does', async () => {
    const found = await tasks(
      'defaults: &d {lr: 1, m: 2}\np:\n  <<: [{m: 3, n: 4}, *d]\n  n: 5\n  combinations: [{seed: &s [1, 2]}]\nq: {combinations: [{seed: *s}]}\n',
    );
    expect(found.map(({ parameters }) => parameters)).toEqual([
      { lr: 1, m: 3, n: 5, seed: 1 },
      { lr: 1, m: 3, n: 5, seed: 2 },
      { lr: 1, m: 2, seed: 1 },
      { lr: 1, m: 2, seed: 2 },
    ]);
  });

  test('may have a byte order mark, CRLF and comments', async () => {
    expect(await tasks('\uFEFF# c\r\np: # c\r\n  combinations:\r\n    - seed: [1, 2] # c\r\n')).toHaveLength(
      2,
    );
  });
});

describe('seeds of a file', () => {
  const P = 'p: {combinations: [{a: [1, 2]}, {b: [3, 4]}]}';
  const seeds = (found: readonly TaskSpec[]) => found.map(({ parameters }) => parameters.seed);

  test('multiply every combination of every phase, and vary fastest', async () => {
    const found = await tasks(`seeds: [42, 101]\n${P}\nq: {lr: 1, combinations: [{a: [5]}]}`);
    expect(found.map(({ phase, parameters: { a, b, seed } }) => [phase, a, b, seed])).toEqual([
      ...[1, 2].flatMap((a) => [3, 4].flatMap((b) => [42, 101].map((seed) => ['p', a, b, seed]))),
      ['q', 5, undefined, 42],
      ['q', 5, undefined, 101],
    ]);
    const { phases } = await read(`${P}\nseeds: [1, 2, 3]`);
    expect(phases[0]?.factors.at(-1)).toEqual({ name: 'seed', count: 3 });
  });

  test('are 42 if the file says nothing of them', async () => {
    const found = await tasks(P);
    expect(seeds(found)).toEqual([42, 42, 42, 42]);
    expect(Object.keys(found[0]?.parameters ?? {})).toEqual(['a', 'b', 'seed']);
    expect((await tasks(`seeds: [42]\n${P}`)).map(idOf)).toEqual(found.map(idOf));
  });

  test('are those of the phase or of the defaults, if these have some', async () => {
    expect(seeds(await tasks('p: {combinations: [{a: [1]}, {seed: [7, 8]}]}'))).toEqual([7, 8]);
    expect(seeds(await tasks('p: {seed: 7, combinations: [{a: [1]}]}'))).toEqual([7]);
    expect(seeds(await tasks('defaults: {seed: 7}\np: {combinations: [{a: [1]}]}'))).toEqual([7]);
    const both = await tasks('defaults: {seed: 7}\nseeds: [1, 2]\np: {combinations: [{a: [1]}]}');
    expect(seeds(both)).toEqual([1, 2]);
  });

  test('may be a reference', async () => {
    const text = 'seeds: &s [1, 2]\np: {combinations: [{fold: *s}]}';
    expect((await tasks(text)).map(({ parameters: { fold, seed } }) => [fold, seed])).toEqual([
      [1, 1],
      [1, 2],
      [2, 1],
      [2, 2],
    ]);
  });

  test('are for files: a grid and a list of commands have what is written', async () => {
    const [inGrid] = (await open({ grid: ['a=1'] })).tasks();
    expect(inGrid?.parameters).toEqual({ a: 1 });
  });
});

const idOf = ({ parameters }: TaskSpec) => taskId(parameters);

describe('the sweep files', () => {
  test("are the project's configs/config_exp*.yaml by default, in the order of their numbers", async () => {
    const phase = (name: string) => `${name}: {combinations: [{seed: [1]}]}`;
    const path = project({
      'configs/config_exp10.yaml': phase('ten'),
      'configs/config_exp2.yaml': phase('two'),
      'configs/config_exp1b.yaml': phase('one'),
      'configs/other.yaml': 'no sweep',
      'configs/config_exp3.yaml~': 'no sweep',
    });
    const { phases } = await open({ project: path });
    expect(phases.map(({ name }) => name)).toEqual(['one', 'two', 'ten']);
  });

  test('count once if they are named twice', async () => {
    const path = project({ 'a.yaml': 'p: {combinations: [{seed: [1]}]}' });
    expect((await open({ files: [join(path, 'a.yaml'), `${path}/./a.yaml`] })).size).toBe(1);
  });

  test('are named by an error where there are none', async () => {
    expect(await refusal(open({ project: project({}) }))).toMatch(
      /^there is no configs\/config_exp\*\.yaml; name a sweep file, or use --grid/,
    );
    expect(await refusal(open({ project: project({ 'configs/a.yml': '' }) }))).toContain('configs/a.yml');
  });
});

const P = 'p:\n  combinations:\n    - seed: [1]\n';

describe('mistakes are named with file, line and key', () => {
  test.each([
    ['', "s.yaml:1: it is empty; a sweep has a phase such as 'exp1:"],
    ['# only\n', 's.yaml:1: it is empty'],
    ['---\n', 's.yaml:1: it is empty'],
    ['- 1\n', 's.yaml:1: it must be a map'],
    ['word\n', 's.yaml:1: it must be a map'],
    ['defaults: {a: 1}\n', 's.yaml:1: there is no phase in it'],
    ['defaults: [1]\n', 's.yaml:1: defaults: it must be a map'],
    [`${P}q: {seed: 1}\n`, "s.yaml:4: 'q' has no 'combinations', so it isn't a phase; add them"],
    [`${P}q: 5\n`, "s.yaml:4: 'q' has no 'combinations'"],
    [`${P}q:\n`, "s.yaml:4: 'q' has no 'combinations'"],
    [`${P}q:\n  combination: []\n`, "s.yaml:4: 'q': it has 'combination'; did you mean 'combinations'?"],
    ['default:\n  seed: 1\n', "s.yaml:1: there is no key 'default'; did you mean 'defaults'?"],
    ['p:\n  combinations: []\n', "s.yaml:2: 'p': combinations: it is an empty list"],
    ['p:\n  combinations:\n', "s.yaml:2: 'p': combinations: use a list"],
    ['p:\n  combinations: {}\n', "s.yaml:2: 'p': combinations: an entry must be a map of lists; use a list"],
    ['p:\n  combinations: seed\n', "s.yaml:2: 'p': combinations: use a list"],
    ['p:\n  combinations:\n    - [1]\n', "s.yaml:3: 'p': combinations: an entry must be a map of lists"],
    ['p:\n  combinations:\n    - {}\n', "s.yaml:3: 'p': combinations: an entry must be a map of lists"],
    [
      'p:\n  combinations:\n    - seed: 1.0\n',
      "s.yaml:3: 'p': combinations: 'seed' needs a list of values, such as 'seed: [1.0]'",
    ],
    ['p:\n  combinations:\n    - seed: []\n', "s.yaml:3: 'p': combinations: 'seed' has an empty list"],
    [
      'p:\n  combinations:\n    - seed: [1]\n    - seed: [2]\n',
      "s.yaml:4: 'p': combinations: 'seed' is given twice",
    ],
    [
      'p:\n  combinations:\n    - seed:\n      - 1\n      - [2]\n',
      "s.yaml:5: 'p': combinations: a value of 'seed' must be a single one, not a list",
    ],
    [
      `defaults:\n  seed: [1, 2]\n${P}`,
      "s.yaml:2: defaults: 'seed' must be a single value; several are 'seeds: [42, 43]' at the left margin, or",
    ],
    [`defaults:\n  output_dir: [a]\n${P}`, "s.yaml:2: defaults: 'output_dir' must be a single value"],
    [`defaults:\n  command: a\n${P}`, "s.yaml:2: defaults: 'command' belongs to the file"],
    [`${P}  command: a\n`, "s.yaml:4: 'p': 'command' belongs to the file"],
    [`${P}  __proto__: a\n`, "s.yaml:4: 'p': a parameter can't be called __proto__"],
    [`${P}  "a{b}": a\n`, "s.yaml:4: 'p': the name 'a{b}' has characters that aren't allowed"],
    [`${P}  "": a\n`, "s.yaml:4: 'p': a parameter needs a name"],
    [`${P}p:\n  combinations: []\n`, "s.yaml:4: 'p' is given twice"],
    [`${P}  a: 1\n  a: 2\n`, "s.yaml:5: 'a' is given twice"],
    ['"a/b": {combinations: [{seed: [1]}]}\n', "s.yaml:1: a phase can't be called 'a/b'"],
    ['a b: {combinations: [{seed: [1]}]}\n', "s.yaml:1: a phase can't be called 'a b'"],
    ['.a: {combinations: [{seed: [1]}]}\n', "s.yaml:1: a phase can't be called '.a'"],
    ['"": {combinations: [{seed: [1]}]}\n', 's.yaml:1: a phase needs a name'],
    [`${P}---\nq: 1\n`, 's.yaml:4: a second document begins'],
    ['p:\n\tcombinations: []\n', 's.yaml:2: a tab is used for indentation'],
    [`${P}  a: *b\n`, 's.yaml:4: *b refers to nothing above it'],
    [`${P}  a: &b [*b]\n`, 's.yaml:4: *b refers to a value that contains it'],
    [
      `${P}  a: !python/object:os.system x\n`,
      "s.yaml:4: the tag '!python/object:os.system' isn't supported here",
    ],
    [`${P}  a: !!set {x}\n`, "s.yaml:4: the tag '!!set' isn't supported here"],
    [`${P}  a: 12345678901234567890123\n`, 's.yaml:4: 12345678901234567890123 is too large for an integer'],
    [`${P}  a: "\\0"\n`, 's.yaml:4: the character U+0000'],
    [
      `${P}  a: {dataset}\n`,
      "s.yaml:4: {dataset} without quotes is a map in YAML; for the placeholder write '{dataset}'",
    ],
    [`${P}  a: {dataset}_x\n`, "needs quotes, such as '{dataset}_x'"],
    [`${P}  a: [1, 2\n`, 's.yaml:5: not valid YAML'],
    [`${P}  ? [1]\n  : 2\n`, 's.yaml:4: a key must be a name'],
    [`${P}  <<: 1\n`, 's.yaml:4: <<: only a map or a list of maps can be merged'],
    ...['42', '', '[]', "[1, '2']", '[1, 2..9]', '{combinations: [{a: [1]}]}'].map((seeds) => [
      `seeds: ${seeds}\np: {combinations: [{a: [1]}]}\n`,
      "s.yaml:1: seeds: it must be a list of plain whole numbers such as '[42, 43]'; a phase can't",
    ]),
    [`seeds: [1]\n${P}`, "s.yaml:2: 'p' has 'seed', and the file has 'seeds'; remove one of them"],
    [
      'seeds: [1]\np: {seed: 1, combinations: [{a: [1]}]}\n',
      "s.yaml:2: 'p' has 'seed', and the file has 'seeds'",
    ],
    ['seed: [1]\np: {combinations: [{a: [1]}]}\n', "s.yaml:1: there is no key 'seed'; did you mean 'seeds'?"],
    [`command: ''\n${P}`, 's.yaml:1: the command: it is empty'],
    [`command: {a: b}\n${P}`, 's.yaml:1: command: it must be a line or a list of words'],
    [`command: [a, [b]]\n${P}`, 's.yaml:1: command: it must be a line or a list of words'],
    [`shell: true\n${P}`, "s.yaml:1: shell: there is no 'command'"],
    [
      `command: a\nshell: bash\n${P}`,
      's.yaml:2: shell: it must be true or false: whether a shell runs the command',
    ],
  ])('%j', async (text, message) => {
    expect(await refusal(read(text))).toContain(message);
  });

  test('a terminal is not at the mercy of a file', async () => {
    const message = await refusal(read('p:\n  combinations:\n    - "\\e[2Ja\\n": 5\n'));
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    expect(message).not.toMatch(/[\x00-\x1f]/);
  });
});

describe('files that are no sweep files, or meant to harm', () => {
  test('directories, FIFOs, devices and missing files are refused at once', async () => {
    const path = project({});
    mkdirSync(join(path, 'd'));
    spawnSync('mkfifo', [join(path, 'f')]);
    const refused = (name: string) => refusal(open({ files: [join(path, name)] }));
    expect(await refused('d')).toContain('d: it is a directory; name the files in it');
    expect(await refused('f')).toContain('f: it is not a regular file');
    expect(await refused('none')).toContain("none: it doesn't exist");
    expect(await refusal(open({ files: ['/dev/zero'] }))).toContain('not a regular file');
  });

  test.skipIf(process.geteuid?.() === 0)(
    'a file without permission is refused (root has it always)',
    async () => {
      const path = join(project({ 'a.yaml': 'p: 1' }), 'a.yaml');
      chmodSync(path, 0);
      expect(await refusal(open({ files: [path] }))).toContain('no permission to read it');
    },
  );

  test('a file that isn’t UTF-8 is refused', async () => {
    expect(await refusal(read(Buffer.from('p: \xe4', 'latin1')))).toContain('s.yaml: it is not UTF-8');
    expect(await refusal(read(Buffer.from('\ufeffp: 1', 'utf16le')))).toContain('s.yaml: it is not UTF-8');
  });

  test('a file that is too large is refused', async () => {
    const path = join(project({}), 'big.yaml');
    writeFileSync(path, Buffer.alloc(2 * 1024 * 1024, 0x20));
    expect(await refusal(open({ files: [path] }))).toContain('larger than 1 MiB');
  });

  test('references that mean billions of values are refused', async () => {
    const levels = Array.from(
      { length: 15 },
      (_, i) => `  l${i + 1}: &l${i + 1} [${Array(9).fill(`*l${i}`).join(', ')}]`,
    );
    const bomb = `defaults:\n  l0: &l0 [1, 2]\n${levels.join('\n')}\n${P}`;
    expect(await refusal(read(bomb))).toMatch(/s\.yaml:\d+: more than 1,000,000 values/);
  });

  test('values that are nested without end, also by references, are refused', async () => {
    expect(await refusal(read(`p: ${'['.repeat(30)}1${']'.repeat(30)}`))).toContain(
      'nested deeper than 20 levels',
    );
    const chain = Array.from({ length: 30 }, (_, i) => `  l${i + 1}: &l${i + 1} [*l${i}]`).join('\n');
    expect(await refusal(read(`defaults:\n  l0: &l0 [1]\n${chain}\n${P}`))).toContain(
      'nested deeper than 20 levels',
    );
  });

  test('many keys and values are read in reasonable time', async () => {
    const values = Array.from({ length: 20_000 }, (_, i) => i).join(', ');
    const sweep = await read(`p: {combinations: [{seed: [${values}]}]}\n`);
    expect(sweep.size).toBe(20_000);
  });
});
