// npm run bench [-- NAME…]: measures what can be measured here, pairs in turn in one run, and prints medians with the
// middle half of the values.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { experiments } from './experiments.js';
import { handover } from './handover.js';
import { idle } from './idle.js';
import { keeper } from './keeper.js';
import { machine } from './measure.js';
import { queues } from './queues.js';
import { snapshot } from './snapshot.js';
import { start } from './start.js';

const BENCHMARKS = { snapshot, start, handover, idle, keeper, experiments, queues };

const names = process.argv.slice(2);
const unknown = names.find((name) => !Object.hasOwn(BENCHMARKS, name));
if (unknown !== undefined) {
  console.error(`there is no benchmark '${unknown}'; there are ${Object.keys(BENCHMARKS).join(', ')}`);
  process.exit(64);
}
console.log(`${machine()}, ${new Date().toISOString().slice(0, 10)}\n`);
const results = {};
for (const [name, benchmark] of Object.entries(BENCHMARKS)) {
  if (names.length === 0 || names.includes(name)) {
    results[name] = typeof benchmark === 'function' ? await benchmark() : await tablesOf(benchmark);
  }
}
const directory = join(dirname(import.meta.dirname), 'bench/results');
mkdirSync(directory, { recursive: true });
writeFileSync(join(directory, 'latest.json'), JSON.stringify({ machine: machine(), results }, null, 2));

async function tablesOf(benchmark) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  try {
    const tables = await benchmark.run({ quick: false, directory, leaveOut: console.log, log: console.log });
    for (const { title, unit, rows } of tables) {
      console.log(`${title}, ${unit}:`);
      for (const { label, series } of rows) {
        const values = Object.entries(series).map(([name, { median }]) => `${name} ${median.toFixed(2)}`);
        console.log(`  ${label}: ${values.join(', ')}`);
      }
    }
    return tables;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
