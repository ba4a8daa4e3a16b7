// Feeds parsers with inputs that are made to break them: the native ones with libFuzzer (test/fuzz/native, as Debian's clang has it),
// which looks for inputs that reach new code, under AddressSanitizer and UBSan; those in TypeScript with fast-check (test/fuzz/*.test.ts).
//
// Usage: node scripts/fuzz.js [TARGET...] [--inputs N | --seconds N] [--seed N]
//        default: all targets, a minute each; a target is a name of NATIVE below, or of a file in test/fuzz
//
// An input that broke something stays in build-fuzz/findings, and `build-fuzz/TARGET FILE` repeats it.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(import.meta.dirname);
const SOURCES = join(root, 'test/fuzz/native');
const build = join(root, 'build-fuzz');

const simulator = (...names) => names.map((name) => `simulator/${name}`);
/** The files of a part of the simulator, as native/sources.json has them. */
const part = (name) =>
  JSON.parse(readFileSync(join(root, 'native/sources.json'), 'utf8'))[name].map((file) =>
    file.replace(/^native\/|\.cc$/g, ''),
  );
const SIMULATOR = part('simulator_shared');

/**
 * The fuzzed parsers: `sources` of native/ or simulator/ beside the target's own, calls of the system that the target answers instead (`wrap`), and inputs
 * to begin with (`seeds`), words that matter to it, and how long an input may become, in bytes (`most`).
 */
export const NATIVE = {
  keeper: {
    sources: ['keeper/arguments', 'keeper/job_file', 'keeper/record', 'keeper/messages', 'keeper/text'],
    wrap: ['write', 'pwrite', 'fcntl', 'fstat'],
    seeds: [
      'wait\0--lock\x003:17\0--locks\0all\0--queue\x004:9\0--queue-path\0/q\0--lease\x005\0--until\x00100\0--needs\0/n\0--line-before\0w\0--\0sh\0',
      'run\0--leases\x003,4\0--shared\x005\0--lease-file\0/l/a.lease\0--held\x006\0--record\0{"user":"a","pid":1}\0--\0python\0x.py\0',
      'task\0--control\x007\0--grace\x00500\0--directory\0/tmp\0--ignore-signals\x00ff\0--nofile\x001024\0--\0sh\0-c\0true\0',
      'hold\0--marker\x003:123:4:gpu0\0--pid-marker\x005:99:4:gpu1.pid\0--answer\0ready\0--recheck\x00100\0--placeholder\x008\0--placeholder-pid\x004711\0',
      'run\0--job\x007\0--cancel\0command\0--time-limit\x00100:1s\0--notice\x0010:50\0--log\x008:65536\0--then\0/bin/sh\0--then\0x\0--\0true\0',
      '{"user":"a","gpus":[{"index":0,"uuid":"GPU-0"}],"x":[],"y":{},"z":-1.5e3,"s":"\\u00e4\\n"}',
      '{ }',
      // A text that begins with blanks was read from before its beginning.
      `${' '.repeat(30)}}`,
    ],
    words: ['--inherited', '--gpus', '--name', 'null', 'true', 'false', '\\"', '","'],
  },
  processes: {
    sources: ['keeper/text', 'keeper/arguments', 'keeper/job_file', 'keeper/messages', 'keeper/descriptors'],
    wrap: ['open', 'read', 'close', 'access', 'opendir', 'readdir', 'closedir', 'kill'],
    seeds: [
      '\x001 (python) S 1 1 1 0 -1',
      '\x001 (a) b) Z 4711',
      '\x011 (gpu-owner-group) R 1',
      '\x02pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 4711 00:29:1234 0 EOF\nlock:\t2: OFDLCK ADVISORY  WRITE -1 00:29:1234 0 EOF\n',
      '\x031 7\xff2 3\xff\xff2 (a) S 1\xff',
      '\x831 2 3\xff2 (a) S 1\xff3 (b) R 2\xff1 2 3\xff',
      // A line that ends behind the state was read behind its end; 0 is no process, but all of a group.
      '\x002 (a)S',
      '\x002 (a) S',
      '\x000 (a) S 99999999999999999999',
      '\x0399999999999999999999 0\xff',
      '\x830 2\xff0 (a) S 1\xff',
    ],
    most: 500,
    words: [') R ', ') S ', ') Z ', 'FLOCK', 'OFDLCK', '2147483647', '4294967296'],
  },
  'wait-queue': {
    sources: ['locks/wait_queue'],
    wrap: [],
    most: 300,
    seeds: [
      '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\x02\x09',
      '\x01\x02\x05\0\0\0\x20\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\0\0',
      // The last byte but one that can be locked: places behind it had no numbers.
      '\x01\x01\xff\xb8\xb8\xb8\xb8\xb8\xb8\xff\xff\x01\xff\xff\xff\xff\xff\xff\xff\xff',
      '\0\0\0\0\0\0\0\0\0\0\x01\xfc\xff\xff\xff\xff\xff\xff\xff',
    ],
    words: ['\x01\xff\xff\xff\xff\xff\xff\xff\xff', '\x06\xff\xff\xff\xff\xff\xff\xff\xff'],
  },
  'simulated-state': {
    sources: [...SIMULATOR, ...part('simulator_nvml'), ...simulator('tool_show', 'tool_parse')],
    wrap: [],
    seeds: [
      '\x01\x10\0\0\xff\xff\xff\xff',
      '\0\x11\0\0\x07\0\0\0\x1e\x10\0\x09\x09\x09\x09',
      '\x01\x40\x08\0\x03\0\0\0',
    ],
    words: ['\xff\xff\xff\xff\xff\xff\xff\xff', '\x7e\x40\0', '\x7d\0\0'],
  },
  'machine-file': {
    sources: simulator('machines', 'machine_file'),
    wrap: [],
    seeds: [
      '[gpu]\nname = NVIDIA H200\ncount = 8\n',
      '# a server\r\ndriver = 535.54.03\nnvml = 12.535.54.03\ncuda = 12.2\npersistence = off\n\n[gpu]\nname = X\nmemory = 81559 MiB\nreserved = 614MiB\nused = 0\npower-limit = 700 W\nidle-power = 70.5\ntemperature = 30 C\nbus = 0001:5d:1e.0\nnuma = 1\nuuid = GPU-00000000-0000-4000-8000-000000000001\ncompute-mode = prohibited\nunsupported = power, energy\n',
      '[gpu]\nname = NVIDIA A100-SXM4-80GB\nmig = on\ninstance = 0 3g.40gb 2:0\ninstance = 4 1c.1g.10gb+me 7:1 MIG-00000000-0000-4000-8000-000000000001 9.5 GiB\n[gpu]\nname = NVIDIA RTX A4000\nmig = none\ndisplay = on\ngraphics = 120MiB\ngraphics = 4 MiB /usr/bin/gnome-shell\n',
    ],
    words: [
      '[gpu]\n',
      'compute-capability = 9.0\n',
      'multiprocessors = 132\n',
      'speed = 1\n',
      '18446744073709551615',
      '.001',
    ],
  },
  'simulated-text': {
    sources: [...SIMULATOR, ...simulator('visible_devices', 'tool_set', 'tool_parse')],
    wrap: [],
    seeds: [
      '\x00a100x4-mig\0',
      '\x0020 GiB\0',
      '\x063,1,0\0PCI_BUS_ID\0',
      '\x04GPU-00000000-0000-4000-8000-000000000001,GPU-00000000-0000-4000-8000-000000000002\0',
      '\x06MIG-GPU-1/7/0,MIG-2\0',
      '\x0agpu=all\0mig=on\0instances=0,2\0',
      '\x0bgpu=0,2\0lost=on\0latency=power:500,all:7\0error=memory:21\0',
      '\x8ateardown=100\0hang=all\0unsupported=power\0count=on\0pid-offset=7\0',
      '\x09gpu=0\0utilization=50\0power=80.5\0temperature=60\0hidden-memory=2GiB\0compute-mode=prohibited\0display=off\0xid=79\0',
    ],
    words: [
      'default',
      'none',
      'reset-required=on',
      'no-permission=on',
      'hidden-processes=on',
      'exclusive-process',
      'MIG-',
      'GPU-',
    ],
  },
};

/** Why native parsers can't be fuzzed here; null where they can. */
export function whyNotNative() {
  const { status, stdout } = spawnSync('clang++', ['-print-file-name=libclang_rt.fuzzer-x86_64.a'], {
    encoding: 'utf8',
  });
  if (status !== 0) return 'clang++ is not installed (Debian, Ubuntu: apt-get install clang libclang-rt-dev)';
  // Where clang has them, depends on its version: what it can link, it has.
  const probe = ['-x', 'c++', '-fsanitize=fuzzer,address,undefined', '-', '-o', '/dev/null'];
  const program = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }';
  if (spawnSync('clang++', probe, { input: program, stdio: ['pipe', 'ignore', 'ignore'] }).status === 0)
    return null;
  return `clang++ can't link libFuzzer (${stdout.trim()}; Debian, Ubuntu: apt-get install libclang-rt-dev)`;
}

function newest(directory) {
  const files = readdirSync(directory, { recursive: true, withFileTypes: true });
  return Math.max(
    ...files
      .filter((file) => file.isFile())
      .map(({ parentPath, name }) => statSync(join(parentPath, name)).mtimeMs),
  );
}

/** Compiles a native target, unless nothing has changed since. @returns its program */
export function compileNative(target) {
  const program = join(build, target);
  const { sources, wrap } = NATIVE[target];
  const changed = Math.max(
    newest(join(root, 'native')),
    newest(join(root, 'simulator')),
    newest(SOURCES),
    statSync(import.meta.filename).mtimeMs,
  );
  if ((statSync(program, { throwIfNoEntry: false })?.mtimeMs ?? 0) > changed) return program;
  mkdirSync(build, { recursive: true });
  execFileSync(
    'clang++',
    [
      ...['-std=c++17', '-O1', '-g1', '-fno-exceptions', '-fno-rtti', '-fno-omit-frame-pointer'],
      ...['-fsanitize=fuzzer,address,undefined', '-fno-sanitize-recover=all'],
      ...[`-I${join(root, 'native')}`, `-I${root}`, `-I${SOURCES}`, join(SOURCES, `${target}.cc`)],
      ...sources.map((name) => join(root, name.startsWith('simulator/') ? '' : 'native', `${name}.cc`)),
      ...wrap.map((name) => `-Wl,--wrap=${name}`),
      ...['-ldl', '-lpthread', '-o', program],
    ],
    { stdio: ['ignore', 'inherit', 'inherit'] },
  );
  return program;
}

const bytesOf = (seed) => (typeof seed === 'function' ? seed() : Buffer.from(seed, 'latin1'));
const quoted = (word) =>
  `"${[...Buffer.from(word, 'latin1')].map((byte) => `\\x${byte.toString(16).padStart(2, '0')}`).join('')}"\n`;

/**
 * Runs a native target.
 * @param limits as libFuzzer has them, such as { runs: 1000, seed: 1 }
 * @param show whether what it prints is shown at once
 * @returns how many inputs there were, whether all held, and what it printed
 */
export async function runNative(target, limits, show = false) {
  const program = compileNative(target);
  const findings = join(build, 'findings');
  mkdirSync(findings, { recursive: true });
  // Not kept: each run begins with the same.
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-fuzz-'));
  try {
    const corpus = join(directory, 'corpus');
    mkdirSync(corpus);
    NATIVE[target].seeds.forEach((seed, i) => {
      writeFileSync(join(corpus, String(i)), bytesOf(seed));
    });
    const words = join(directory, 'words');
    writeFileSync(words, NATIVE[target].words.map(quoted).join(''));
    const { most = 4096 } = NATIVE[target];
    const options = Object.entries({
      timeout: 60,
      max_len: most,
      print_final_stats: 1,
      dict: words,
      ...limits,
    });
    const child = spawn(
      program,
      [
        ...options.map(([name, value]) => `-${name}=${value}`),
        `-artifact_prefix=${findings}/${target}-`,
        corpus,
      ],
      {
        cwd: directory,
        stdio: ['ignore', 'ignore', 'pipe'],
        env: {
          ...process.env,
          UBSAN_OPTIONS: 'print_stacktrace=1',
          GPU_OWNER_SIMULATE_DIR: join(directory, 'machines'),
        },
      },
    );
    let output = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      output = (output + text).slice(-100_000);
      if (show) process.stderr.write(text);
    });
    const status = await new Promise((resolve, reject) => {
      child.once('error', reject).once('close', (code, signal) => resolve(signal ?? code));
    });
    const inputs = Number(/^stat::number_of_executed_units:\s*(\d+)/m.exec(output)?.[1] ?? 0);
    return { inputs, held: status === 0, output };
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** Runs a file of test/fuzz. @returns the inputs by test, and whether all held */
function runTypeScript(target, { inputs, seconds, seed }) {
  const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-fuzz-'));
  const counts = join(directory, 'counts');
  writeFileSync(counts, '');
  const env = { ...process.env, GPU_OWNER_FUZZ_COUNTS: counts };
  if (inputs !== undefined) env.GPU_OWNER_FUZZ_INPUTS = String(inputs);
  else env.GPU_OWNER_FUZZ_SECONDS = String(seconds);
  if (seed !== undefined) env.GPU_OWNER_FUZZ_SEED = String(seed);
  const vitest = [
    join(root, 'node_modules/vitest/vitest.mjs'),
    'run',
    '--testTimeout=0',
    `test/fuzz/${target}.test.ts`,
  ];
  const { status } = spawnSync(process.execPath, vitest, {
    cwd: root,
    stdio: ['ignore', 'ignore', 'inherit'],
    env,
  });
  const lines = readFileSync(counts, 'utf8')
    .trim()
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  rmSync(directory, { recursive: true });
  return { lines, held: status === 0 };
}

function typeScriptTargets() {
  return readdirSync(join(root, 'test/fuzz'))
    .filter((name) => name.endsWith('.test.ts') && name !== 'native.test.ts')
    .map((name) => name.slice(0, -'.test.ts'.length));
}

function parseArguments(words) {
  const settings = { targets: [] };
  for (let i = 0; i < words.length; i++) {
    const [, name, given] = /^--(inputs|seconds|seed)(?:=(.*))?$/.exec(words[i]) ?? [];
    if (name === undefined) settings.targets.push(words[i]);
    else {
      settings[name] = Number(given ?? words[++i]);
      if (!Number.isSafeInteger(settings[name])) throw new Error(`--${name} needs a whole number`);
    }
  }
  if (settings.inputs === undefined) settings.seconds ??= 60;
  return settings;
}

async function main() {
  const { targets, ...limits } = parseArguments(process.argv.slice(2));
  const native = Object.keys(NATIVE);
  const all = [...native, ...typeScriptTargets()];
  const unknown = targets.find((target) => !all.includes(target));
  if (unknown !== undefined) throw new Error(`there is no target ${unknown}; there are ${all.join(', ')}`);
  const reason = whyNotNative();
  let total = 0;
  let failed = 0;
  const tell = (target, inputs, held) => {
    total += inputs;
    console.log(`${target}: ${inputs.toLocaleString('en')} inputs${held ? '' : ', FAILED'}`);
  };
  for (const target of targets.length > 0 ? targets : all) {
    if (!native.includes(target)) {
      const { lines, held } = runTypeScript(target, limits);
      for (const { title, inputs } of lines) tell(`${target}: ${title}`, inputs, true);
      if (!held) console.log(`${target}: FAILED`);
      if (!held) failed++;
    } else if (reason !== null) {
      console.log(`${target}: skipped, ${reason}`);
    } else {
      const { inputs, seconds, seed } = limits;
      const limit = inputs === undefined ? { max_total_time: seconds } : { runs: inputs };
      const {
        inputs: count,
        held,
        output,
      } = await runNative(target, seed === undefined ? limit : { ...limit, seed });
      tell(target, count, held);
      if (!held) console.error(output.slice(-8_000));
      if (!held) failed++;
    }
  }
  console.log(`${total.toLocaleString('en')} inputs, ${failed} targets failed`);
  process.exitCode = failed > 0 ? 1 : 0;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
