// Statistics, and what measured processes need.
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';

const root = dirname(import.meta.dirname);

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Summarizes values for a table: the median, the middle half as a measure of spread, and the value that 1 of 100 exceeds. */
export function summarize(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (p) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p))];
  return { n: sorted.length, median: median(sorted), low: at(0.25), high: at(0.75), p99: at(0.99) };
}

/** The series that commands are compared with. */
export const NODE_ALONE = 'node -e 0';

/**
 * Times whole processes in turn, round after round; a first round isn't counted: it makes the simulated machine.
 * @param programs name -> words @param after what is to be done after each of them, with its name
 * @returns name -> times in ms
 */
export function timeInTurn(programs, rounds, env, after) {
  const times = Object.fromEntries(Object.keys(programs).map((name) => [name, []]));
  for (let i = -1; i < rounds; i++) {
    for (const [name, [program, ...args]] of Object.entries(programs)) {
      const begin = performance.now();
      const { status } = spawnSync(program, args, { env, stdio: 'ignore' });
      const time = performance.now() - begin;
      if (status !== 0) throw new Error(`${name} exited with ${status}`);
      if (i >= 0) times[name].push(time);
      after?.(name);
    }
  }
  return times;
}

/**
 * Tables of commands of gpu-owner beside Node.js alone.
 * @param times of {@link timeInTurn}, with {@link NODE_ALONE} @param targets of the differences, by command
 */
export function overNode({ [NODE_ALONE]: alone, ...ours }, note, targets) {
  const differences = Object.fromEntries(
    Object.entries(ours).map(([name, list]) => [name, list.map((time, i) => time - alone[i])]),
  );
  const rows = (lists, base = {}) =>
    Object.entries(lists).map(([name, list]) => ({
      label: `gpu-owner ${name}`,
      series: { ...base, 'gpu-owner': summarize(list) },
    }));
  return [
    {
      name: 'whole',
      title: 'From start to end',
      unit: 'ms',
      note,
      base: NODE_ALONE,
      rows: rows(ours, { [NODE_ALONE]: summarize(alone) }),
    },
    {
      name: 'over-node',
      title: 'Over Node.js alone',
      unit: 'ms',
      note: 'differences of neighbours in time',
      rows: rows(differences),
      targets: targets(differences),
    },
  ];
}

/** The environment for measured processes. */
export function environment(extra) {
  const env = { ...process.env, GPU_OWNER_MACHINE_CONFIG: '/dev/null', ...extra };
  delete env.NODE_EXTRA_CA_CERTS; // read at every start of Node.js, 30 ms
  delete env.CUDA_VISIBLE_DEVICES;
  return env;
}

/** Where the native part was built. */
export const built = process.env.GPU_OWNER_BUILD ?? join(root, 'build/Release');

/** The path of a program of bench/baselines, compiled once per directory. @param source e.g. 'smi.c' */
export function compiled(directory, source) {
  const program = join(directory, source.replace(/\.[^.]+$/, ''));
  if (existsSync(program)) return program;
  const path = join(import.meta.dirname, 'baselines', source);
  try {
    execFileSync('cc', ['-O2', '-o', program, path, '-ldl', '-lpthread'], {
      encoding: 'utf8',
      stdio: 'pipe',
    });
  } catch (error) {
    const why = error.code === 'ENOENT' ? 'cc is not installed' : error.stderr;
    throw new Error(`${source} can't be compiled: ${why}`, { cause: error });
  }
  return program;
}

/** A process that a benchmark talks to, a line at a time. */
export class Partner {
  #ended;
  #lines;

  /** @param child with pipes for its standard input and output */
  constructor(child) {
    this.process = child;
    this.#ended = new Promise((resolve) =>
      child.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`)),
    );
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    child.stdin.on('error', () => {}); // the process has ended, which its listeners learn
  }

  tell(words) {
    this.process.stdin.write(`${words}\n`);
  }

  /** Reads its next line. */
  async heard() {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`a process that should claim has ended: ${await this.#ended}`);
    return value;
  }

  end() {
    this.process.stdin.end();
  }

  get ended() {
    return this.#ended;
  }
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Loads what isn't in the package's interface, for benchmarks of a part. @param source a module in lib/ */
export async function bundled(source) {
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  mkdirSync(join(root, 'build'), { recursive: true });
  // Within the package, so that its dependencies are found.
  const directory = mkdtempSync(join(root, 'build', 'bench-'));
  try {
    const outfile = join(directory, 'part.mjs');
    // A static import would fail before bench/run.js has said that Node.js is too old, as `npm ci` fails then, too.
    const { build } = await import('esbuild');
    await build({
      stdin: { contents: source, resolveDir: join(root, 'lib'), loader: 'ts' },
      outfile,
      bundle: true,
      platform: 'node',
      format: 'esm',
      external: Object.keys(dependencies),
      define: {
        'import.meta.dirname': JSON.stringify(join(root, 'lib')),
        'import.meta.filename': JSON.stringify(join(root, 'lib/index.ts')),
      },
      logLevel: 'silent',
    });
    return await import(outfile);
  } finally {
    rmSync(directory, { recursive: true });
  }
}
