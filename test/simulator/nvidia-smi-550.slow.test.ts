// NVIDIA's own nvidia-smi 550 over the simulated NVML: what it prints is what ours prints.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { nvidiaSmi550 } from '../support/clients.ts';
import { because } from '../support/doctor.ts';
import { command } from '../support/machine.ts';
import { libraries, Simulated } from '../support/simulated.ts';

const theirs = nvidiaSmi550();
const OURS = join(libraries, 'bin/nvidia-smi');
const directory = mkdtempSync(join(tmpdir(), 'nvidia-smi-550-'));
const table = join(directory, 'table.so');
afterAll(() => rmSync(directory, { recursive: true }));

/** On simulated drivers since 580, these fields of ours are those of version 580; see nvidia-smi.test.ts. */
const OTHERWISE_IN_580 =
  /^(pcie\.link\.gen\.hostmax|display_mode|c2c\.mode|(protected_memory|fabric|reset_status)\..*)$/;

/** The output of a program and its exit code, without what differs by right: the time, and its own version. */
function printed(program: string, machine: Simulated, args: string[]): string {
  const environment = { ...machine.environment, LD_LIBRARY_PATH: libraries } as NodeJS.ProcessEnv;
  if (program === theirs.program) environment.LD_PRELOAD = table;
  const { status, stdout } = spawnSync(program, args, {
    encoding: 'utf8',
    env: environment,
    timeout: 60_000,
  });
  const text = stdout
    .replace(/[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}/g, 'DATE')
    .replace(/\d{4}\/\d\d\/\d\d \d\d:\d\d:\d\d\.\d+/g, 'TIME')
    .replace(/NVIDIA-SMI [\d.]+ +/, 'NVIDIA-SMI ')
    .replace(/NVIDIA-SMI version.*/, '')
    .replaceAll('Function Not Found', 'N/A');
  return `${text}exit code ${status}\n`;
}

describe.skipIf(theirs.reason !== null)(`NVIDIA's nvidia-smi${because(theirs.reason)}`, () => {
  if (theirs.reason === null)
    execFileSync('cc', [
      '-O1',
      '-shared',
      '-fPIC',
      '-o',
      table,
      join(import.meta.dirname, 'fixtures/smi_table.c'),
      '-ldl',
    ]);

  const helped = (topic: string) => {
    const { stdout } = spawnSync(theirs.program, [`--help-query-${topic}`], {
      encoding: 'utf8',
      env: { ...machine().environment, LD_LIBRARY_PATH: libraries, LD_PRELOAD: table } as NodeJS.ProcessEnv,
    });
    return [...stdout.matchAll(/^("[\w.]+"(?: or "[\w.]+")*)$/gm)].flatMap(([line]) =>
      [...line.matchAll(/"([\w.]+)"/g)].map(([, name]) => name as string),
    );
  };
  const machines = new Map<string, Simulated>();
  const machine = (name = '2') => {
    const opened = machines.get(name) ?? new Simulated(name);
    machines.set(name, opened);
    return opened;
  };
  afterAll(() => {
    for (const opened of machines.values()) opened[Symbol.dispose]();
  });
  const same = (name: string, ...args: string[]) =>
    expect(printed(OURS, machine(name), args), `nvidia-smi ${args.join(' ')} on ${name}`).toBe(
      printed(theirs.program, machine(name), args),
    );

  // Not the desktops: NVIDIA's program leaves out programs that draw, for reasons of its own. Not drivers before 550.
  describe.each(['a100x4-mig', 'mixed'])('on %s', (name) => {
    test('prints the same table, list and log, as text and as XML', () => {
      for (const args of [[], ['-L'], ['-q'], ['-q', '-x'], ['--version']]) same(name, ...args);
    });

    test('prints the same sections of the log', () => {
      same(
        name,
        '-q',
        '-d',
        'MEMORY,COMPUTE,PIDS,PERFORMANCE,TEMPERATURE,VOLTAGE,RESET_STATUS,GSP_FIRMWARE_VERSION',
      );
      same(name, '-q', '-d', 'UTILIZATION,ECC,POWER,CLOCK,PAGE_RETIREMENT,ACCOUNTING,ROW_REMAPPER');
      same(name, '-q', '-d', 'ENCODER_STATS,FBC_STATS,SUPPORTED_CLOCKS,SUPPORTED_GPU_TARGET_TEMP', '-i', '0');
    });

    test('has the same values in every field of every query', () => {
      for (const topic of [
        'gpu',
        'compute-apps',
        'accounted-apps',
        'retired-pages',
        'remapped-rows',
        'supported-clocks',
      ]) {
        const isComparable = (field: string) => name === 'wsl' || !OTHERWISE_IN_580.test(field);
        const fields = helped(topic).filter(isComparable);
        expect(fields.length).toBeGreaterThan(topic === 'gpu' ? 160 : 5);
        for (const format of ['csv', 'csv,noheader', 'csv,nounits'])
          same(name, `--query-${topic}=${fields.join(',')}`, `--format=${format}`);
      }
    });
  });

  test('shows programs that compute in the same way', async () => {
    await machine().occupy('1', '--memory', '1GiB', '--name', 'python train.py', '--utilization', '60');
    for (const args of [[], ['-q'], ['-q', '-x']]) same('2', ...args);
    same('2', '--query-compute-apps=gpu_uuid,pid,name,used_memory', '--format=csv');
  });

  test.each(['h200x8', 'a100x4-bridges'])(
    'prints the matrix of connections that status --topology prints: %s',
    (name) => {
      const theirMatrix = printed(theirs.program, machine(name), ['topo', '-m'])
        .split('\n')
        .filter((line) => /^GPU\d+\t/.test(line))
        .map((line) => line.split('\t').map((cell) => cell.trim()))
        .map(([, ...cells]) => cells.slice(0, -1));
      const { stdout } = spawnSync(process.execPath, [command, 'status', '--topology'], {
        encoding: 'utf8',
        env: machine(name).environment as NodeJS.ProcessEnv,
      });
      const ourMatrix = stdout
        .split('\n')
        .filter((line) => /^ *\d+ /.test(line))
        .map((line) => line.trim().split(/ +/).slice(1))
        .map((cells) => cells.slice(0, cells.indexOf('X') === -1 ? 0 : theirMatrix.length));
      expect(theirMatrix.length).toBeGreaterThan(1);
      expect(ourMatrix).toEqual(theirMatrix.map((cells) => cells.slice(0, theirMatrix.length)));
    },
  );

  test('chooses GPUs in the same way', () => {
    // By bus ID it asks an internal function.
    for (const ids of ['1', '1,0', '0,0', '0,9', '9,0', '9', 'x', '-1'])
      same('h200x8', '--query-gpu=index,count', '--format=csv', '-i', ids);
    same('h200x8', '-q', '-d', 'COMPUTE', '-i', '3');
  });

  test.each([9, 18])('says the same of a driver that does not start: %i', (code) => {
    const broken = machine('4');
    broken.tool(['set', `error=init:${code}`]);
    for (const args of [[], ['-L'], ['--query-gpu=name', '--format=csv']]) same('4', ...args);
  });

  test.each(['lost'])('says the same of a GPU that is broken: %s', (fault) => {
    const broken = machine('5');
    broken.tool(['reset']);
    broken.tool(['set', 'gpu=2', `${fault}=on`]);
    for (const args of [[], ['--query-gpu=name', '--format=csv'], ['-q', '-d', 'COMPUTE', '-i', '1']])
      same('5', ...args);
  });

  test('refuses in the same words, with the same exit codes', () => {
    for (const args of [
      ['-q', '-d', 'FROB'],
      ['--query-gpu=name,frob', '--format=csv'],
      ['--query-gpu=name'],
      ['--query-gpu=name', '--format=csv,xml'],
      ['--query-gpu=name', '--format=noheader'],
      ['--query-gpu=name', '--query-compute-apps=pid', '--format=csv'],
      ['--query-gpu=index, name', '--format=csv'],
    ])
      same('2', ...args);
    const lost = machine('3');
    lost.tool(['set', 'gpu=1', 'lost=on']);
    same('3', '--query-gpu=name', '--format=csv');
    same('3', '--query-gpu=name', '--format=csv', '-i', '2');
  });
});
