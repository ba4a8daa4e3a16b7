// npm run bench: measures the figures, prints them, and writes those of bench/README.md.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, release, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { figures, stop, untilStopped } from './figures.js';
import { endLeftovers, removeDirectory } from './leftovers.js';

const HELP = `Usage: npm run bench [-- OPTIONS] [NAME...]

Measures gpu-owner beside nvidia-smi and an empty Node.js program. All figures
take about a quarter of an hour; with names (${Object.keys(figures).join(', ')}),
only those are measured.

  --quick        few rounds: shows that benchmarks work, not how fast things are
  --json FILE    write the results to FILE
  --docs         write bench/README.md; all must be measured, and succeed
  --help         print this help

Exit codes: 0, 1 if something failed, 64 for wrong arguments, 130 after Ctrl-C.`;

const root = dirname(import.meta.dirname);
const PAGE = join(root, 'bench/README.md');
const RESULTS = join(root, 'bench/results.json');

/** Three digits that count. */
export function number(value) {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString('en-US');
  return value.toFixed(Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Number(value.toPrecision(3)))))));
}

/** @returns the cells of a row: what it is, what was measured, what it is compared with, the target */
function cells({ label, unit, n, against, target, ...summary }) {
  const text = ({ median, low, high, p95 }) => {
    const late = p95 && n >= 15 ? `; p95 ${number(p95)}` : '';
    return `${number(median)}${unit && ` ${unit}`}${n > 1 ? ` (${number(low)} to ${number(high)}${late})` : ''}`;
  };
  return [
    label,
    text(summary),
    against ? `${against.label}: ${text(against)}` : '',
    target ? `${target.text}: ${target.met ? 'met' : 'missed'}` : '',
  ];
}

/** bench/README.md with the figures of these results, between its comments. */
export function fill(page, { date, machine, load, figures: measured }) {
  const line = (words) => `| ${words.join(' | ')} |`;
  const tables = Object.values(measured).map(({ title, rows }) =>
    [`**${title}**`, '', line(['', 'gpu-owner', 'compared with', 'target']), '|---|---|---|---|']
      .concat(rows.map((row) => line(cells(row))))
      .join('\n'),
  );
  const conditions = `Measured on ${date.slice(0, 10)}, with a load of ${load[0]} before and ${load[1]} after:\n${machine.replace(', Node.js', ',\nNode.js')}.`;
  return page.replace(
    /(<!-- figures -->\n)[\s\S]*(<!-- end of figures -->)/,
    (_, begin, end) => `${begin}${[conditions, ...tables].join('\n\n')}\n${end}`,
  );
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      options: {
        quick: { type: 'boolean', default: false },
        json: { type: 'string' },
        docs: { type: 'boolean', default: false },
        help: { type: 'boolean' },
      },
      allowPositionals: true,
    });
    const unknown = positionals.find((name) => !Object.hasOwn(figures, name));
    if (unknown !== undefined) throw new Error(`there is no '${unknown}'`);
    if (values.docs && (values.quick || positionals.length > 0)) {
      throw new Error('--docs needs all figures: leave out --quick and names');
    }
    if (values.json !== undefined) writeFileSync(values.json, '', { flag: 'a' });
    return { ...values, names: positionals.length > 0 ? positionals : Object.keys(figures) };
  } catch (error) {
    console.error(`bench: ${error.message}\nSee npm run bench -- --help`);
    process.exit(64);
  }
}

function machineText(driver) {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const processors = `${cpus().length} × ${cpus()[0]?.model.trim() ?? 'unknown processor'}`;
  const gpus = driver === null ? 'simulated driver, whose calls take no time' : driver;
  return `${processors}, Linux ${release()}, Node.js ${process.versions.node}, gpu-owner ${version}, ${gpus}`;
}

/** The real driver's version and the names of its GPUs; null without one. */
function realDriver() {
  const query = ['--query-gpu=driver_version,name', '--format=csv,noheader'];
  const { status, stdout } = spawnSync('nvidia-smi', query, { encoding: 'utf8' });
  return status === 0 && stdout.trim() !== ''
    ? `NVIDIA driver ${stdout.trim().split('\n').join(' + ')}`
    : null;
}

async function main({ quick, json, docs, names }) {
  const directory = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-bench-'));
  const end = async () => {
    await endLeftovers(directory);
    removeDirectory(directory);
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
    process.on(signal, async () => {
      stop();
      await end();
      process.exit(signal === 'SIGINT' ? 130 : 1);
    });
  }
  const driver = realDriver();
  const measured = {};
  const results = {
    date: new Date().toISOString(),
    quick,
    machine: machineText(driver),
    load: [],
    figures: measured,
  };
  const load = () => results.load.push(Math.round(loadavg()[0] * 100) / 100);
  let hasFailed = false;
  console.log(results.machine);
  load();
  try {
    for (const name of names) {
      const { title, run } = figures[name];
      console.log(`\n${name}: ${title}`);
      try {
        measured[name] = { title, rows: await run({ quick, directory: join(directory, name), driver }) };
        for (const row of measured[name].rows) console.log(`  ${cells(row).filter(Boolean).join('\n    ')}`);
      } catch (error) {
        await untilStopped();
        hasFailed = true;
        measured[name] = { title, rows: [], error: error.message };
        console.error(`  failed: ${error.stack}`);
      }
      await endLeftovers(directory);
    }
  } finally {
    await end();
  }
  load();
  const text = `${JSON.stringify(results, (_, value) => (typeof value === 'number' ? Number(value.toPrecision(5)) : value), 1)}\n`;
  if (json !== undefined) writeFileSync(json, text);
  if (docs && !hasFailed) {
    writeFileSync(RESULTS, text);
    writeFileSync(PAGE, fill(readFileSync(PAGE, 'utf8'), JSON.parse(text)));
  }
  return hasFailed ? 1 : 0;
}

if (process.argv[1] === import.meta.filename) {
  // Variables that the caller has set are for other commands. But the binaries to measure may be others.
  for (const name of Object.keys(process.env)) {
    if (name.startsWith('GPU_OWNER_') && name !== 'GPU_OWNER_BUILD') delete process.env[name];
  }
  const chosen = readArguments();
  if (chosen.help) console.log(HELP);
  else process.exit(await main(chosen));
}
