// npm run bench: measures what can be measured here, pairs in turn in one run.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { fork } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { names as known, load as loadBenchmark } from './benchmarks.js';
import { absences, writeDocs } from './docs.js';
import { endLeftovers, removeDirectories, removeDirectory } from './leftovers.js';
import { load, machine, machineText } from './machine.js';
import { duration } from './numbers.js';
import { main as comparePairs } from './paired.js';
import { coloured, plain, summaryText, tableText, wrap } from './print.js';

const HELP = `Usage: npm run bench [-- OPTIONS] [NAME...]
       npm run bench -- paired --against DIR (paired --help)

Measures gpu-owner beside programs in C, nvidia-smi and others, and prints
medians with the middle half of the values. All benchmarks take about five
minutes; with names, only those run.

  --list         names the benchmarks and what they ask, and ends
  --quick        few rounds: shows that benchmarks work, not how fast things are
  --json FILE    writes the results to FILE as well
  --docs         writes the figures of the documentation, too; all
                 benchmarks must run, and succeed
  --help         this text

Results of full runs go to bench/results/latest.json. Exit codes: 0, 1 if a
benchmark failed, 64 for wrong arguments, 130 after Ctrl-C.`;

const root = dirname(import.meta.dirname);
const LIMIT = 40 * 60 * 1000; // for one benchmark; something hangs: a busy machine takes ten times as long as an idle one
const style = process.stdout.isTTY && !process.env.NO_COLOR ? coloured : plain;
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];

// Variables that the caller has set are for other commands. But the binaries to measure may be others.
for (const name of Object.keys(process.env)) {
  if (name.startsWith('GPU_OWNER_') && name !== 'GPU_OWNER_BUILD') delete process.env[name];
}

const isPaired = process.argv[2] === 'paired';
const { options, names } = isPaired ? {} : readArguments();
if (isPaired) process.exitCode = comparePairs(process.argv.slice(3));
else if (options.help) console.log(HELP);
else if (options.list) await list();
else process.exitCode = await main();

function readArguments() {
  const fail = (message) => {
    console.error(`bench: ${message}\nSee npm run bench -- --help`);
    process.exit(64);
  };
  try {
    const { values, positionals } = parseArgs({
      options: {
        list: { type: 'boolean' },
        quick: { type: 'boolean', default: false },
        json: { type: 'string' },
        docs: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h' },
      },
      allowPositionals: true,
    });
    const unknown = positionals.find((name) => !known.includes(name));
    if (unknown !== undefined) fail(`there is no benchmark '${unknown}'; there are ${known.join(', ')}`);
    if (values.docs && (values.quick || positionals.length > 0)) {
      fail('--docs takes its figures from one full run: leave out --quick and names');
    }
    if (values.json !== undefined) tryToWrite(values.json);
    return {
      options: values,
      names: known.filter((name) => positionals.length === 0 || positionals.includes(name)),
    };
  } catch (error) {
    return fail(error.message);
  }
}

/** Rather than fail after five minutes. */
function tryToWrite(file) {
  const existed = existsSync(file);
  closeSync(openSync(file, 'a'));
  if (!existed) rmSync(file);
}

async function list() {
  const width = Math.max(...known.map((name) => name.length)) + 2;
  for (const name of known) {
    const { title, question } = await loadBenchmark(name).catch((error) => ({
      title: `can't be loaded: ${error.message}`,
    }));
    const lines = wrap(question === undefined ? title : `${title}. ${question}`, 80 - width);
    lines.forEach((line, i) => {
      console.log(`${(i === 0 ? name : '').padEnd(width)}${line}`);
    });
  }
}

async function main() {
  const base = mkdtempSync(join(realpathSync(tmpdir()), 'gpu-owner-bench-'));
  const stopped = new AbortController();
  for (const signal of signals) process.on(signal, () => stopped.abort(signal));
  const begin = performance.now();
  const results = {
    format: 1,
    date: new Date().toISOString(),
    seconds: 0,
    quick: options.quick,
    machine: machine(),
    load: { before: load(), after: null },
    benchmarks: {},
  };
  try {
    console.log(wrap(`${machineText(results.machine)}, ${results.date.slice(0, 10)}`, 100).join('\n'));
    console.log(`Load before: ${results.load.before.join(' ')}\n`);
    for (const name of names) {
      if (stopped.signal.aborted) break;
      const result = await measure(name, join(base, name), stopped.signal);
      results.benchmarks[name] = result;
      if (!stopped.signal.aborted) print(name, result);
    }
  } finally {
    removeDirectory(base);
  }
  if (stopped.signal.aborted) {
    console.error(`bench: stopped by ${stopped.signal.reason}; nothing was written`);
    return stopped.signal.reason === 'SIGINT' ? 130 : 1;
  }
  results.load.after = load();
  results.seconds = Math.round((performance.now() - begin) / 1000);
  return report(results);
}

/** In a process and a process group of its own: whatever it starts or breaks, the others go on, and Ctrl-C is ours alone. */
async function measure(name, directory, signal) {
  mkdirSync(directory);
  const result = { title: name, question: '', seconds: 0, load: load(), tables: [], leftOut: [] };
  const begin = performance.now();
  const child = fork(
    join(import.meta.dirname, 'run-one.js'),
    [name, directory, options.quick ? 'quick' : 'full'],
    {
      detached: true,
      env: { ...process.env, TMPDIR: directory },
    },
  );
  const end = () => child.kill('SIGKILL');
  signal.addEventListener('abort', end);
  const limit = setTimeout(() => {
    result.error = `it took more than ${duration(LIMIT / 1000)}`;
    end();
  }, LIMIT);
  let told = false;
  child.on('message', ({ title, question, log, leftOut, tables, error, stack }) => {
    if (title !== undefined) Object.assign(result, { title, question });
    if (log !== undefined) console.error(`  ${log}`);
    if (leftOut !== undefined) result.leftOut.push(leftOut);
    if (tables !== undefined) result.tables = tables;
    if (error !== undefined) {
      result.error = error;
      console.error(stack ?? error);
    }
    told ||= tables !== undefined || error !== undefined;
  });
  // Not 'exit', which may come before the last that it said.
  const [code, killedBy] = await new Promise((ended) => child.once('close', (...how) => ended(how)));
  signal.removeEventListener('abort', end);
  clearTimeout(limit);
  if (!told) result.error ??= `it ended with ${killedBy ?? `exit code ${code}`} before its end`;
  result.seconds = Math.round((performance.now() - begin) / 100) / 10;
  await endLeftovers(directory);
  removeDirectories(directory);
  return result;
}

function print(name, { title, question, tables, error, seconds }) {
  console.log(wrap(`${name}: ${title}. ${question}`, 100).map(style.bold).join('\n'));
  for (const table of tables) console.log(`\n${tableText(table, style)}`);
  if (error !== undefined) console.log(style.bad(`\n  failed: ${error}`));
  console.log(`\n  ${name} took ${seconds} s\n`);
}

function report(results) {
  console.log(summaryText(results, style));
  const text = `${JSON.stringify(results, null, 2)}\n`;
  const latest = join(root, 'bench/results/latest.json');
  mkdirSync(dirname(latest), { recursive: true });
  const files = options.quick ? [] : [latest];
  if (options.json !== undefined) files.push(resolve(options.json));
  for (const file of files) writeFileSync(file, text);
  console.log(
    `\n${duration(results.seconds)}, load after: ${results.load.after.join(' ')}${files.length > 0 ? `; written: ${files.join(', ')}` : ''}`,
  );
  const failed = Object.values(results.benchmarks).some(({ error }) => error !== undefined);
  if (options.docs && failed) console.error('bench: a benchmark failed, so the documentation stays as it is');
  else if (options.docs) {
    for (const file of writeDocs(results)) console.log(`written: ${file}`);
    for (const line of absences()) console.error(`bench: ${line}`);
  }
  return failed ? 1 : 0;
}
