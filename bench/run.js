// npm run bench [-- NAME…]: measures what can be measured here, pairs in turn in one run, and prints medians with the
// middle half of the values.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { experiments } from './experiments.js';
import { handover } from './handover.js';
import { idle } from './idle.js';
import { machine } from './measure.js';
import { queues } from './queues.js';
import { snapshot } from './snapshot.js';
import { start } from './start.js';

const BENCHMARKS = { snapshot, start, handover, idle, experiments, queues };

const names = process.argv.slice(2);
const unknown = names.find((name) => !Object.hasOwn(BENCHMARKS, name));
if (unknown !== undefined) {
  console.error(`there is no benchmark '${unknown}'; there are ${Object.keys(BENCHMARKS).join(', ')}`);
  process.exit(64);
}
console.log(`${machine()}, ${new Date().toISOString().slice(0, 10)}\n`);
const results = {};
for (const [name, benchmark] of Object.entries(BENCHMARKS)) {
  if (names.length > 0 && !names.includes(name)) continue;
  results[name] = typeof benchmark === 'function' ? await benchmark() : await runTables(benchmark);
}

async function runTables(benchmark) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-bench-'));
  try {
    const leaveOut = (what, why) => console.log(`${what}: not measured: ${why}`);
    const tables = await benchmark.run({ quick: false, directory, leaveOut, log() {} });
    console.log(benchmark.title);
    for (const { title, unit, rows, targets = [] } of tables) {
      console.log(`  ${title}, ${unit}:`);
      for (const { label, series } of rows) {
        const told = Object.entries(series).map(
          ([name, { median, low, high }]) =>
            `${name} ${median.toFixed(1)} (${low.toFixed(1)} to ${high.toFixed(1)})`,
        );
        console.log(`    ${label}: ${told.join(', ')}`);
      }
      for (const { text, value, met } of targets)
        console.log(`    ${text}: ${value.toFixed(2)}, ${met ? 'met' : 'missed'}`);
    }
    console.log();
    return tables;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

const directory = join(dirname(import.meta.dirname), 'bench/results');
mkdirSync(directory, { recursive: true });
writeFileSync(join(directory, 'latest.json'), JSON.stringify({ machine: machine(), results }, null, 2));
