// The witness of the benchmarks must notice what it is there for.
import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openWitness, testimony } from '../../bench/witness.js';

let directory: string;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'gpu-owner-test-'));
});

afterEach(() => {
  rmSync(directory, { recursive: true });
});

/** "PID what milliseconds GPU" */
function told(...lines: string[]) {
  const witness = openWitness(directory);
  appendFileSync(witness.path, lines.map((line) => `${line}\n`).join(''));
  return () => witness.check();
}

describe('the log', () => {
  test('holders one after the other are fine, and so are holders of different GPUs', () => {
    const check = told('1 had 10 A', '2 had 11 B', '1 gone 20 A', '3 had 20 A', '2 gone 30 B', '3 gone 40 A');
    expect(check()).toEqual({ holds: 3, gpus: 2 });
  });

  test('entries are read in the order of the clock, not of the lines', () => {
    expect(told('2 had 30 A', '1 had 10 A', '2 gone 40 A', '1 gone 20 A')().holds).toBe(2);
  });

  test('two holders of one GPU are a violation, however short', () => {
    const check = told('1 had 10000 A', '2 had 19000 A', '1 gone 20000 A', '2 gone 40000 A');
    expect(check).toThrow('A had two holders, processes 1 and 2, for 1.0 us at least');
  });

  test('a holder within the time of another is a violation', () => {
    expect(told('1 had 10 A', '2 had 20 A', '2 gone 30 A', '1 gone 40 A')).toThrow('two holders');
  });

  test('a holder that never ended still has its GPU', () => {
    expect(told('1 had 10 A', '2 had 20 A', '2 gone 30 A')).toThrow('two holders');
  });

  test('a killed holder has the GPU until the kill, not shorter', () => {
    expect(told('1 had 10 A', '1 had 10 B', '1 killed 20', '2 had 21 A', '2 gone 30 A')().holds).toBe(3);
    rmSync(join(directory, 'witness.log'));
    expect(told('1 had 10 A', '1 killed 20', '2 had 19 A', '2 gone 30 A')).toThrow('two holders');
  });

  test('shares of a GPU may add up to all of it, not to more, and exclude whole holders', () => {
    const shares = ['1 had 10 A 0.7', '2 had 11 A 0.2', '3 had 12 A 0.1'];
    const ends = ['1 gone 20 A 0.7', '2 gone 21 A 0.2', '3 gone 22 A 0.1'];
    expect(told(...shares, ...ends, '4 had 22 A', '4 gone 30 A')()).toEqual({ holds: 4, gpus: 1 });
    for (const fourth of ['4 had 19000 A 0.01', '4 had 15000 A']) {
      rmSync(join(directory, 'witness.log'));
      const check = told(...shares, fourth, '1 gone 20000 A 0.7');
      expect(check).toThrow(/A had holders of more than all of it, processes 1, 2, 3, 4, for [15]\.0 us/);
    }
  });

  test('what a process notes after its kill was noted does not count, until another one has its number', () => {
    const late = ['1 had 10 A', '1 killed 20', '1 gone 21 A', '1 had 22 B', '2 had 30 B', '2 gone 40 B'];
    expect(told(...late)().holds).toBe(2);
    rmSync(join(directory, 'witness.log'));
    expect(told(...late, '1 born 33', '1 had 35 B')).toThrow('B had two holders');
  });

  test('a log without entries proves nothing, and is refused', () => {
    expect(told()).toThrow('saw no holder');
  });

  test('a log that makes no sense is refused', () => {
    expect(told('1 gone 10 A')).toThrow('never had');
    rmSync(join(directory, 'witness.log'));
    expect(told('1 had 10 A', '1 had 20 A')).toThrow('noted twice');
    rmSync(join(directory, 'witness.log'));
    expect(told('1 has 10 A')).toThrow("can't be read");
  });
});

test('a holder notes on the clock of all processes', () => {
  const witness = openWitness(directory);
  const source = `
    import { testimony } from ${JSON.stringify(join(import.meta.dirname, '../../bench/witness.js'))};
    const { had, gone } = testimony(${JSON.stringify(witness.path)});
    had(['A', 'B']);
    gone(['A', 'B']);`;
  const run = () => execFileSync(process.execPath, ['--input-type=module', '-e', source]);
  const self = testimony(witness.path);
  self.had(['A']);
  self.gone(['A']);
  run();
  self.had(['A', 'B']);
  self.gone(['A', 'B']);
  expect(witness.check()).toEqual({ holds: 5, gpus: 2 });
  self.had(['B']);
  run();
  self.gone(['B']);
  expect(() => witness.check()).toThrow(/^B had two holders/);
});
