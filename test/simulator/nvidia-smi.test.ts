// nvidia-smi for simulated machines, as scripts call it. nvidia-smi-550.slow.test.ts compares all pages and exit codes with NVIDIA's own.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { command } from '../support/machine.ts';
import { libraries, Simulated, until } from '../support/simulated.ts';

const SMI = join(libraries, 'bin/nvidia-smi');

let machine: Simulated;
afterEach(() => machine[Symbol.dispose]());

function on(name: string | number): void {
  machine = new Simulated(name);
}

function smi(...args: string[]) {
  const { status, stdout, stderr } = spawnSync(SMI, args, { encoding: 'utf8', env: machine.environment });
  return { status, lines: stdout.trimEnd().split('\n'), stdout, stderr };
}

/** A command of gpu-owner on the machine. */
function gpuOwner(...args: string[]) {
  return spawnSync(process.execPath, [command, ...args], { encoding: 'utf8', env: machine.environment });
}

/** A program on a GPU until the function ends. */
async function beside(gpu: string, words: string[], look: (pid: number) => void | Promise<void>) {
  const child = spawn(join(libraries, '../gpu-owner-simulator'), ['occupy', gpu, ...words], {
    env: machine.environment as NodeJS.ProcessEnv,
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  try {
    await once(child.stdout, 'data');
    await look(child.pid as number);
  } finally {
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
}

describe('queries', () => {
  test('--query-gpu prints a line per GPU, with a header and units', () => {
    on('h200x8');
    const { status, lines } = smi(
      '--query-gpu=index,gpu_name,memory.total,power.limit,utilization.gpu,pci.bus_id',
      '--format=csv',
    );
    expect(status).toBe(0);
    expect(lines).toHaveLength(9);
    expect(lines[0]).toBe(
      'index, name, memory.total [MiB], power.limit [W], utilization.gpu [%], pci.bus_id',
    );
    expect(lines[2]).toBe('1, NVIDIA H200, 143771 MiB, 700.00 W, 0 %, 00000000:3B:00.0');
  });

  test('names of other versions mean the same fields', () => {
    on(1);
    const names = [
      'clocks_throttle_reasons.active',
      'clocks_event_reasons.gpu_idle',
      'retired_pages.dbe',
      'gom.current',
    ];
    expect(smi(`--query-gpu=${names.join(',')}`, '--format=csv').lines).toEqual([
      'clocks_event_reasons.active, clocks_event_reasons.gpu_idle, retired_pages.double_bit.count, gom.current',
      '0x0000000000000001, Active, [N/A], [N/A]',
    ]);
  });

  test('every field of --help-query-gpu has a value on every GPU, or [N/A]', () => {
    on('mixed');
    const fields = smi('--help-query-gpu').lines.map((line) => /^"([^"]+)"/.exec(line)?.[1] as string);
    expect(fields.length).toBe(144);
    const known = fields.filter((field) => !field.startsWith('reset_status.'));
    const { status, lines } = smi(`--query-gpu=${known.join(',')}`, '--format=csv,noheader');
    expect(status).toBe(0);
    for (const line of lines) {
      const values = line.split(', ');
      expect(values).toHaveLength(known.length);
      expect(values).not.toContain('');
      expect(line).not.toMatch(/Unknown Error/);
    }
  });

  // As version 580.159.04 printed it beside an H200 of a virtual machine.
  test('fields are those of version 580 where the driver is so new', () => {
    machine = new Simulated(join(import.meta.dirname, 'fixtures/h200-580.conf'));
    const query = (fields: string) => smi(`--query-gpu=${fields}`, '--format=csv');
    const recorded = {
      'memory.total [MiB]': '143771 MiB',
      'memory.reserved [MiB]': '616 MiB',
      'memory.used [MiB]': '0 MiB',
      'memory.free [MiB]': '143156 MiB',
      'pcie.link.gen.hostmax': '[N/A]',
      display_mode: '[Requested functionality has been deprecated]',
      'c2c.mode': 'Disabled',
      'protected_memory.total [MiB]': '0 MiB',
      'protected_memory.used [MiB]': '0 MiB',
      'protected_memory.free [MiB]': '0 MiB',
      'fabric.state': 'N/A',
      'fabric.status': 'N/A',
    };
    const names = Object.keys(recorded);
    expect(query(names.map((name) => name.split(' ')[0]).join(',')).lines).toEqual([
      names.join(', '),
      Object.values(recorded).join(', '),
    ]);
    for (const gone of ['reset_status.reset_required', 'reset_status.drain_and_reset_recommended'])
      expect(query(`name,${gone}`)).toMatchObject({
        status: 2,
        stdout: `Field "${gone}" is not a valid field to query.\n\n`,
      });
  });

  test('--query-compute-apps prints a line per process that computes, with what it uses', async () => {
    on(2);
    await beside('1', ['--memory', '3GiB', '--name', 'python train.py'], (pid) => {
      const { lines } = smi('--query-compute-apps=gpu_uuid,pid,name,used_memory', '--format=csv');
      expect(lines).toEqual([
        'gpu_uuid, pid, process_name, used_gpu_memory [MiB]',
        `GPU-00000000-0000-4000-8000-000000000001, ${pid}, python train.py, 3488 MiB`,
      ]);
      expect(smi('--query-compute-apps=pid', '--format=csv,noheader', '-i', '0').stdout).toBe('');
    });
    await until(() => smi('--query-compute-apps=pid', '--format=csv,noheader').stdout === '');
  });

  test('give the same numbers as status --json', async () => {
    on('rtx4090x2-display');
    await beside('1', ['--memory', '2GiB'], () => {
      const gpus = JSON.parse(gpuOwner('status', '--json').stdout);
      const { lines } = smi(
        '--query-gpu=uuid,memory.used,memory.total,power.draw,temperature.gpu',
        '--format=csv,noheader,nounits',
      );
      const MiB = 2 ** 20;
      expect(lines).toEqual(
        // biome-ignore lint/suspicious/noExplicitAny: JSON of the command
        gpus.map((gpu: any) =>
          [
            gpu.uuid,
            Math.floor(gpu.memory.usedBytes / MiB),
            gpu.memory.totalBytes / MiB,
            gpu.powerWatts.toFixed(2),
            gpu.temperatureCelsius,
          ].join(', '),
        ),
      );
    });
  });

  test('-i chooses by index, UUID and bus ID; -f prints into a file', () => {
    on('h200x8');
    const uuid = smi('--query-gpu=uuid', '--format=csv,noheader').lines[5];
    const directory = mkdtempSync(join(tmpdir(), 'nvidia-smi-'));
    const file = join(directory, 'out');
    const { stdout } = smi(
      '-i',
      `${uuid},1,0000:4c:00.0`,
      '--query-gpu=index',
      '--format=csv,noheader',
      '-f',
      file,
    );
    expect(stdout).toBe('');
    // In the driver's order
    expect(readFileSync(file, 'utf8')).toBe('1\n2\n5\n');
    rmSync(directory, { recursive: true });
  });

  test('-l and -lms repeat the rows, and the header only once', async () => {
    on(1);
    const child = spawn(SMI, ['--query-gpu=index', '--format=csv', '-lms', '20'], {
      env: machine.environment as NodeJS.ProcessEnv,
    });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (part) => {
      text += part;
    });
    await until(() => text.split('\n').length > 5);
    child.kill();
    expect(text).toMatch(/^index\n(0\n)+$/);
  });
});

describe('pages for people', () => {
  test('the table has a box of 91 columns, and names what runs', async () => {
    on('rtx4090x2-display');
    const { status, lines } = smi();
    expect(status).toBe(0);
    for (const line of lines.slice(1)) expect([89, 91]).toContain(line.length);
    expect(lines[2]).toMatch(
      /^\| NVIDIA-SMI 580\.65\.06 +Driver Version: 580\.65\.06 +CUDA Version: 13\.0 +\|$/,
    );
    expect(lines.join('\n')).toMatch(
      /^\| {3}0 {2}NVIDIA GeForce RTX 4090 {8}Off \| {3}00000000:01:00\.0 {2}On \|/m,
    );
    expect(lines.join('\n')).toMatch(
      /^\| {4}0 {3}N\/A {2}N\/A {3}4194400 {6}G {3}\/usr\/lib\/xorg\/Xorg {28}182MiB \|$/m,
    );
  });
});

describe('-q -x', () => {
  /** The log as Python's own parser reads it: [tag, text or children]. */
  function parse(xml: string) {
    const program = `
import json, sys, xml.etree.ElementTree as tree
def read(node): return {"tag": node.tag, **node.attrib, "text": (node.text or "").strip(), "children": [read(child) for child in node]}
print(json.dumps(read(tree.parse(sys.stdin).getroot())))`;
    const { status, stdout, stderr } = spawnSync('python3', ['-c', program], {
      encoding: 'utf8',
      input: xml,
    });
    expect(stderr).toBe('');
    expect(status).toBe(0);
    return JSON.parse(stdout) as Node;
  }
  type Node = { tag: string; id?: string; text: string; children: Node[] };
  const all = (node: Node, ...path: string[]): Node[] =>
    path.reduce(
      (nodes, tag) => nodes.flatMap(({ children }) => children.filter((each) => each.tag === tag)),
      [node],
    );
  const text = (node: Node, ...path: string[]) => all(node, ...path)[0]?.text;

  test('is XML with the values of the queries, whatever a process is called', async () => {
    on('h200x8');
    await beside('3', ['--memory', '2GiB', '--name', 'a<b> & "c"'], (pid) => {
      const log = parse(smi('-q', '-x').stdout);
      expect(log.tag).toBe('nvidia_smi_log');
      expect(text(log, 'attached_gpus')).toBe('8');
      const gpus = all(log, 'gpu');
      const rows = smi('--query-gpu=pci.bus_id,uuid,memory.used,power.draw', '--format=csv,noheader').lines;
      expect(
        gpus.map((gpu) =>
          [
            gpu.id,
            text(gpu, 'uuid'),
            text(gpu, 'fb_memory_usage', 'used'),
            text(gpu, 'gpu_power_readings', 'instant_power_draw'),
          ].join(', '),
        ),
      ).toEqual(rows);
      const [process] = all(gpus[3] as Node, 'processes', 'process_info');
      expect(text(process as Node, 'process_name')).toBe('a<b> & "c"');
      expect(text(process as Node, 'pid')).toBe(String(pid));
    });
  });
});

test.each(['dmon', 'pmon', 'topo', 'nvlink', 'mig'])('%s is not simulated, and is refused', (command) => {
  on(1);
  expect(smi(command, '-i', '0')).toMatchObject({
    status: 255,
    stdout: expect.stringMatching(/simulated nvidia-smi/),
  });
});

describe('exit codes and messages', () => {
  test.each([
    [['--query-gpu=frob', '--format=csv'], 2, /Field "frob" is not a valid field to query/],
    [['--query-gpu=name'], 2, /"--format=" switch is missing/],
    [['--query-gpu=name', '--format=xml'], 2, /Format modifier is not recognized/],
    [['--query-gpu=name', '--format=noheader'], 2, /--format=csv is mandatory/],
    [['--query-gpu=name', '--query-compute-apps=pid', '--format=csv'], 2, /Only one --query-\* switch/],
    [['--frobnicate'], 255, /--frobnicate is not recognized by the simulated nvidia-smi/],
    [['-q', '-x', '-d', 'MEMORY'], 2, /Not with -x: -d/],
    [['-q', '-d', 'FROB'], 2, /Failed to parse --display/],
    [['-l', 'soon'], 2, /Not a number of seconds: soon/],
    [['-i', '9'], 6, /No devices were found/],
  ])('are right: %j ends with %i', (args, code, words) => {
    on(1);
    const { status, stdout } = smi(...args);
    expect(status).toBe(code);
    expect(stdout).toMatch(words);
  });

  test('without a simulated machine it refuses: real GPUs have their own nvidia-smi', () => {
    on(1);
    machine.environment.GPU_OWNER_SIMULATE = undefined;
    const { status, stderr } = smi();
    expect(status).toBe(9);
    expect(stderr).toMatch(/simulated machines only.*gpu-owner simulate shell/);
  });
});

describe('the simulated nvidia-smi is found by', () => {
  test('a command under `run` on a simulated machine', () => {
    on(2);
    const { stdout } = gpuOwner('run', '--', 'nvidia-smi', '--query-gpu=count', '--format=csv,noheader');
    expect(stdout).toBe('2\n2\n');
  });

  test('the shell of `simulate shell`, and its commands', () => {
    on(1);
    machine.environment.SHELL = '/bin/sh';
    const shell = spawnSync(process.execPath, [command, 'simulate', '--machine', '3', 'shell'], {
      encoding: 'utf8',
      env: machine.environment,
      input: 'nvidia-smi -L\nexit 7\n',
    });
    expect(shell.stdout.match(/^GPU \d: Simulated GPU/gm)).toHaveLength(3);
    expect(shell.status).toBe(7);
    const words = ['sh', '-c', 'echo "$0 $1"; command -v nvidia-smi', '--machine', 'x'];
    const { stdout } = gpuOwner('simulate', 'shell', '--', ...words);
    expect(stdout).toBe(`--machine x\n${SMI}\n`);
  });

  test('`simulate shell -- COMMAND --help` is the help of the command', () => {
    on(1);
    expect(gpuOwner('simulate', 'shell', '--', 'nvidia-smi', '--help').stdout).toMatch(
      /^nvidia-smi of gpu-owner/,
    );
    expect(gpuOwner('simulate', 'shell', '--', 'echo', '-h').stdout).toBe('-h\n');
    expect(gpuOwner('simulate', 'shell', '--help').stdout).toMatch(/^Usage: gpu-owner simulate/m);
  });

  test('`simulate shell` names a command that does not exist, and a machine', () => {
    on(1);
    const missing = gpuOwner('simulate', 'shell', '--', 'frobnicate');
    expect(missing).toMatchObject({ status: 127, stderr: expect.stringMatching(/frobnicate: No such file/) });
    const wrong = gpuOwner('simulate', '--machine', 'frob', 'shell');
    expect(wrong).toMatchObject({ status: 64, stderr: expect.stringMatching(/frob/) });
  });
});
