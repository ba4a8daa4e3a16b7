// Files and messages of several lines: configuration, sweeps, tables, requests, records of queues.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parse as parseCSV } from 'csv-parse/sync';
import fc from 'fast-check';
import { afterAll, expect } from 'vitest';
import { loadConfiguration, mergeCriteria } from '../../lib/config/configuration.ts';
import { csvLine } from '../../lib/platform/index.ts';
import { parseShellLine } from '../../lib/sweeps/files/command.ts';
import { commandsSpace } from '../../lib/sweeps/files/commands-space.ts';
import { gridPhase } from '../../lib/sweeps/files/phase.ts';
import { parseGrid, parseSweepFile } from '../../lib/sweeps/files/sources.ts';

import { parseObject, parseRequest, RequestError } from '../../lib/sweeps/protocol/messages.ts';
import { cellText, normalizeCell, normalizeValue, valueOfCell } from '../../lib/sweeps/tables/cell-value.ts';
import { type CSVRow, decode, MalformedCSVError, parseRows } from '../../lib/sweeps/tables/csv.ts';
import {
  canonical,
  formatValue,
  parseValue,
  stringifyValue,
  type Value,
} from '../../lib/sweeps/task/index.ts';
import { parseScenario } from '../../simulator/scenarios/scenario.ts';
import { expectPrintable, fuzz, fuzzAsync, jsonValue, mutated, orRefusal, text } from './fuzz.ts';

const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-files-'));
afterAll(() => rmSync(directory, { recursive: true }));

const keys = [
  'exclude',
  'devices',
  'minFreeMemory',
  'maxPower',
  'placeholder',
  'visibleDevices',
  'conventions',
  'lockDirectory',
  'lockTimeout',
];
const configuration = `# ours
exclude: [0, 'GPU-1', 2-3]
devices: 0-7
minFreeMemory: 20GiB
maxPower: 80
allowProcesses: true
placeholder: auto
visibleDevices: uuid
conventions: none
lockDirectory: /var/lock/x
lockTimeout: 5s
`;
const yamlWords = [
  ...keys,
  ': ',
  '\n- ',
  '\n  ',
  '{a: ',
  '&x ',
  '*x',
  '? ',
  '| ',
  '> ',
  '!!binary ',
  '!!set ',
  '---\n',
  '...\n',
  '<<: ',
  '"',
  '%YAML 1.1\n',
  '[[[[',
];

fuzz(
  'a configuration file is read or refused',
  fc.oneof(mutated(fc.constant(configuration), yamlWords), text(yamlWords)),
  (written) => {
    const path = join(directory, 'config.yaml');
    writeFileSync(path, written);
    const found = orRefusal(() =>
      loadConfiguration({ GPU_OWNER_MACHINE_CONFIG: path, GPU_OWNER_SIMULATE: '1', HOME: '/nonexistent' }),
    );
    if (!(found instanceof Error)) mergeCriteria({}, found);
  },
);

const sweep = `defaults: {lr: 5e-4, opts: {a: [1, 2]}}
seeds: [1, 2]
exp1:
  note: "{lr}-{seed}"
  combinations:
    - lr: [0.1, 1.0, yes]
      model: {a: 1}
    - {lr: 2, tag: [x, "y z"]}
exp2:
  output_dir: out_{phase}
  command: python x.py --lr {lr}
  combinations: [{seed: [1..3], lr: 1}]
command: [python, train.py, "--seed={seed}"]
`;

fuzz(
  'a sweep file is read or refused, and so are its tasks',
  fc.oneof(
    mutated(fc.constant(sweep), ['{seed}', '{phase}', '{output_dir}', '{', '}', '{{', ...yamlWords]),
    text(yamlWords),
  ),
  (written) => {
    const phases = orRefusal(() => parseSweepFile(written, 's.yaml', null, false).map(gridPhase));
    if (phases instanceof Error) return;
    for (const phase of phases) {
      let count = 0;
      for (const task of phase.tasks()) {
        stringifyValue(task.parameters);
        if (++count >= 20) break;
      }
      expect(count).toBe(Math.min(phase.size, 20));
    }
  },
);

fuzz(
  'grids are read or refused',
  fc.array(
    mutated(fc.constantFrom('seed=0..5', 'lr=1e-3,2e-3', 'a.b=x', 'x=[1,2],{"a":1}', 'n=0..10..2'), [
      '..',
      ',',
      '=',
      '"',
    ]),
    { maxLength: 3 },
  ),
  (words) => {
    orRefusal(() => parseGrid(words));
  },
);

fuzz(
  'files of commands are read or refused',
  fc.tuple(
    text(['\n', 'python x.py', '# c', "'", '"', '$x', '{command}', '{phase}', '|']),
    fc.boolean(),
    fc.constantFrom('results_{phase}', '{command}', 'x/{x}', '..'),
  ),
  ([written, shell, outputDirectory]) => {
    const phase = orRefusal(() =>
      gridPhase(commandsSpace(written, 'c.txt', { phase: 'c', outputDirectory, template: null, shell })),
    );
    if (phase instanceof Error) return;
    orRefusal(() => Array.from(phase.tasks()));
  },
);

fuzz(
  'what is filled into a line for a shell is refused or one word',
  fc.tuple(text(['{a}', '"{a}"', "'{a}'", '\\', '$', '`', '<<', '# ', 'x']), text()),
  ([line, value]) => {
    class Refusal extends Error {}
    const parsed = orRefusal(
      () => parseShellLine(line, (why) => new Refusal(why)),
      (error) => error instanceof Refusal,
    );
    if (!(parsed instanceof Error)) parsed.fill(() => value);
  },
);

const json = fc.oneof(
  fc.json({ maxDepth: 4 }),
  jsonValue.map((value) => JSON.stringify(value)),
  mutated(fc.json({ maxDepth: 3 }), [
    'NaN',
    '-Infinity',
    '1.0',
    '1e400',
    '"\\u0000',
    '01',
    '{"__proto__":',
    '"a":',
  ]),
  text(['{', '"', ':', '1.50']),
);

fuzz(
  'JSON with numbers as they were written: what JSON.parse reads is read, and read again the same',
  json,
  (written) => {
    let plain: unknown;
    let isJSON = true;
    try {
      plain = JSON.parse(written);
    } catch {
      isJSON = false;
    }
    let value: Value;
    try {
      value = parseValue(written);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      if (isJSON) throw new Error('JSON.parse reads it', { cause: error });
      return;
    }
    const again = stringifyValue(value);
    expect(stringifyValue(parseValue(again))).toBe(again);
    expect(canonical(parseValue(again))).toBe(canonical(value));
    if (isJSON) expect(canonical(value)).toBe(canonical(plain as Value));
    // Cells of tables mean what they were written for, but for what no text in UTF-8 can hold.
    const cell = cellText(value);
    const normalized = normalizeCell(cell);
    if (cell === formatValue(value)) expect(normalized).toBe(normalizeValue(value));
  },
);

fuzz(
  'cells mean something, whatever they say',
  text(['[1, 2]', "{'a': True}", '(1,)', 'inf', 'nan', '.5', '1e5', '+']),
  (cell) => {
    const normalized = normalizeCell(cell);
    expect(normalizeCell(` ${cell} `)).toBe(normalized);
    valueOfCell(cell);
  },
);

function rowsOf(bytes: Buffer): CSVRow[] | MalformedCSVError {
  try {
    return [...parseRows(decode(bytes).text)];
  } catch (error) {
    if (!(error instanceof MalformedCSVError)) throw error;
    expectPrintable(error.message);
    return error;
  }
}

const isFull = (cells: readonly string[]) => cells.length > 1 || cells[0]?.trim() !== '';
const csvText = text([',', ',', '"', '""', '\n', '\r\n', 'a', '1.0', '"x\ny"', '\0']);
const csvBytes = fc.oneof(
  { weight: 5, arbitrary: csvText.map((written) => Buffer.from(written)) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 60 }).map((bytes) => Buffer.from(bytes)) },
);

fuzz('rows of a table are where they are said to be', csvBytes, (bytes) => {
  const rows = rowsOf(bytes);
  if (rows instanceof MalformedCSVError) return;
  const { text } = decode(bytes);
  for (const [at, row] of rows.entries()) {
    const next = rows[at + 1]?.start ?? text.length;
    expect(next).toBeGreaterThanOrEqual(row.start);
    if (row.open) continue;
    const [alone] = rowsOf(Buffer.from(text.slice(row.start, next))) as CSVRow[];
    expect(alone?.cells).toEqual(row.cells);
  }
});

fuzzAsync('what both read, this and csv-parse read the same', csvText, async (written) => {
  // Several carriage returns in a row are one line break here.
  if (/\r(?!\n)|\0/.test(written)) return;
  const rows = rowsOf(Buffer.from(written));
  let others: string[][];
  try {
    others = parseCSV(written, { bom: true, record_delimiter: ['\r\n', '\n'], relax_column_count: true });
  } catch {
    return;
  }
  if (rows instanceof MalformedCSVError) return;
  expect(rows.map(({ cells }) => cells)).toEqual(others.filter(isFull));
});

fuzzAsync(
  'rows that are written are read back',
  fc.array(fc.array(text(['"', ',', '\n']), { minLength: 1, maxLength: 4 }), { maxLength: 5 }),
  async (table) => {
    const cells = table.map((row) => row.map((cell) => cellText(cell)));
    const rows = (await rowsOf(Buffer.from(cells.map((row) => `${csvLine(row)}\n`).join('')))) as CSVRow[];
    expect(rows.map((row) => row.cells)).toEqual(cells.filter(isFull));
  },
);

const request = fc.oneof(
  fc.constantFrom(
    '{"type":"request_task","worker_id":"w1","gpu_id":0}',
    '{"type":"task_complete","worker_id":1,"task_id":"t"}',
    '{"type":"task_failed","worker_id":"w","task_id":"t","error":"Traceback\\nx"}',
    '{"type":"submit_result","worker_id":"w","task_id":"t","result_data":{"a":NaN,"b":[1.0]},"token":"s"}',
    '{"type":"status"}',
  ),
  fc
    .dictionary(
      fc.constantFrom('type', 'worker_id', 'task_id', 'gpu_id', 'error', 'result_data', 'token'),
      jsonValue,
    )
    .map((members) => JSON.stringify({ type: 'task_failed', ...members })),
);

fuzz(
  'a request is read or refused',
  fc.oneof(request, mutated(request, ['{', '}', '[', '"', '\\"'])),
  (written) => {
    const members = parseObject(Buffer.from(written));
    if (members === null) return;
    const found = orRefusal(
      () => parseRequest(members),
      (error) => error instanceof RequestError,
    );
    if (!(found instanceof Error) && 'error' in found)
      for (const line of found.error.split('\n')) expectPrintable(line);
    if (!(found instanceof Error) && 'gpu' in found) expectPrintable(found.gpu ?? '');
  },
);

const scenario = `machine: h200x8
speed: 2
steps:
  - { at: 0s, occupy: { gpu: [0, 1:2], memory: 20GiB, name: python, as: train, type: compute, utilization: 5%, for: 3s } }
  - at: 1s
    memory: { process: train, to: 60GiB }
  - at: 2s
    set: [gpu=1, lost=on]
  - { at: 3s, driver: off }
  - { at: 3s, occupy: { gpu: 7 } }
  - { at: 1h, end: python }
`;

fuzz(
  'a scenario is read, with its steps in the order of time, or refused with its line',
  fc.oneof(mutated(fc.constant(scenario), ['occupy', 'at', 'end', ...yamlWords]), text(yamlWords)),
  (written) => {
    const found = orRefusal(() => parseScenario(written, 's.yaml'));
    if (found instanceof Error) {
      expectPrintable(found.message);
      expect(found.message).toMatch(/^s\.yaml:\d+: /);
    } else {
      const times = found.steps.map(({ at }) => at);
      expect(times).toEqual([...times].sort((a, b) => a - b));
    }
  },
);
