// Machines that a file describes, as the simulator, gpu-owner and programs on them see them.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { Machine, python, root } from '../support/machine.ts';
import { libraries } from '../support/simulated.ts';

const tool = join(binaries(), 'gpu-owner-simulator');
const H200 = '[gpu]\nname = NVIDIA H200\n';

let machine: Machine;
beforeEach(() => {
  machine = new Machine('1');
});
afterEach(() => machine.close());

/** Writes a file that describes a machine. @returns where the commands are started, and the machine as variables name it */
function describedBy(text: string, name = 'server.conf') {
  const path = join(machine.directory, name);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return { cwd: machine.directory, env: { GPU_OWNER_SIMULATE: `./${name}` } };
}

const SERVER = `# a server
driver = 570.124.06
cuda = 12.8
persistence = off

[gpu]
name = NVIDIA H200
count = 2
`;

test.each([
  ['440.100', 'GetComputeRunningProcesses', 'GetComputeRunningProcesses_v2'],
  ['550.163', 'GetPciInfoExt', 'GetTemperatureV'],
  ['580.65', 'GetAddressingMode', 'GetNoSuchThing'],
])('driver %s exports nvmlDevice%s, and no nvmlDevice%s', (driver, present, absent) => {
  const { cwd, env } = describedBy(`driver = ${driver}\n\n${H200}`);
  const program = `import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print([hasattr(library, "nvmlDevice" + name) for name in sys.argv[2:]], library.nvmlInit_v2())`;
  const words = ['-c', program, join(libraries, 'libnvidia-ml.so.1'), present, absent];
  const { stdout } = spawnSync('python3', words, {
    cwd,
    encoding: 'utf8',
    env: { ...process.env, ...env, GPU_OWNER_SIMULATE_DIR: machine.directory },
  });
  expect(stdout).toBe('[True, False] 0\n');
});

test('a GeForce without a known name has no ECC, no MIG and a fan', () => {
  const { cwd, env } = describedBy('[gpu]\nname = NVIDIA GeForce RTX 3090\nmemory = 24GiB\n');
  const { stdout } = spawnSync(
    join(libraries, 'bin/nvidia-smi'),
    ['--query-gpu=name,memory.total,ecc.mode.current,mig.mode.current,fan.speed', '--format=csv,noheader'],
    { cwd, encoding: 'utf8', env: { ...process.env, ...env, GPU_OWNER_SIMULATE_DIR: machine.directory } },
  );
  expect(stdout).toBe('NVIDIA GeForce RTX 3090, 24576 MiB, [N/A], [N/A], 0 %\n');
});

describe('a machine file', () => {
  test('says what the driver, CUDA and gpu-owner tell', async () => {
    const started = describedBy(`${SERVER}numa = 1

[gpu]
name = NVIDIA H100 80GB HBM3
memory = 81559 MiB
reserved = 600MiB
used = 3000000
power-limit = 650.5 W
idle-power = 71.5
temperature = 33 C
bus = 0001:5d:1e.0
uuid = GPU-11111111-2222-4333-8444-555555555555
compute-mode = exclusive-process

[gpu]
name = NVIDIA A100-SXM4-80GB
mig = on
instance = 0 3g.40gb 2:0
instance = 4 1c.1g.10gb+me 7:1 MIG-11111111-2222-4333-8444-555555555555 9856 MiB

[gpu]
name = NVIDIA GeForce RTX 4090
display = on
graphics = 120 MiB
graphics = 64 MiB /usr/bin/gnome-shell
unsupported = power, energy
`);
    const { stdout, stderr } = await machine.runCommand(['status', '--json'], started);
    expect(stderr).toBe('');
    const gpus = JSON.parse(stdout);
    expect(gpus.map(({ pciBusId }: { pciBusId: string }) => pciBusId)).toEqual([
      '00000000:01:00.0',
      '00000000:02:00.0',
      '00000001:5D:1E.0',
      ...Array(3).fill('00000001:5E:00.0'),
      '00000001:5F:00.0',
    ]);
    expect(gpus[1]).toMatchObject({ name: 'NVIDIA H200', memory: { totalBytes: 143771 * 2 ** 20 } });
    expect(gpus[2]).toMatchObject({
      name: 'NVIDIA H100 80GB HBM3',
      uuid: 'GPU-11111111-2222-4333-8444-555555555555',
      memory: { totalBytes: 81559 * 2 ** 20, reservedBytes: 600 * 2 ** 20, usedBytes: 3_000_000 },
      powerLimitWatts: 650.5,
      powerWatts: 71.5,
      temperatureCelsius: 33,
      computeMode: 'exclusive-process',
    });
    expect(gpus[3].migInstances).toMatchObject([
      { name: 'NVIDIA A100-SXM4-80GB MIG 3g.40gb', gpuInstanceId: 2, memory: { totalBytes: 40 * 2 ** 30 } },
      {
        name: 'NVIDIA A100-SXM4-80GB MIG 1c.1g.10gb+me',
        uuid: 'MIG-11111111-2222-4333-8444-555555555555',
        gpuInstanceId: 7,
        computeInstanceId: 1,
        memory: { totalBytes: 9856 * 2 ** 20 },
      },
    ]);
    expect(gpus[6]).toMatchObject({ displayActive: true, powerWatts: null, powerLimitWatts: 450 });
    expect(gpus[6].processes).toHaveLength(2);

    const env = { ...started.env, LIBRARIES: libraries, CUDA_DEVICE_ORDER: 'PCI_BUS_ID' };
    const seen = await machine.run([python, join(import.meta.dirname, 'fixtures/described.py')], {
      ...started,
      env,
    });
    expect(seen.stdout).toBe('(0, 12080) [0, 0, 0, 0, 0] 12.570.124.06 2\n');
    const smi = [join(libraries, 'bin/nvidia-smi'), '-L'];
    expect((await machine.run(smi, started)).stdout).toMatch(
      /^GPU 2: NVIDIA H100 80GB HBM3 \(UUID: GPU-1111/m,
    );
  });

  test('as the page has it: each model is known, and the example is one', async () => {
    const page = readFileSync(join(root, 'docs/simulator.md'), 'utf8');
    const models = /These names bring[^:]*:\n([^.]*)\./.exec(page)?.[1] as string;
    const names = [...models.matchAll(/`([^`]+)`/g)].map(([, name]) => name as string);
    expect(names.length).toBeGreaterThan(10);
    const example = /```ini\n([\s\S]*?)```/.exec(page)?.[1] as string;
    for (const text of [example, names.map((name) => `[gpu]\nname = ${name}\n`).join('')]) {
      expect((await machine.run([tool, 'show'], describedBy(text))).stderr).toBe('');
    }
  });

  test.each(['no extension/server', 'größe 1.2.conf', `${'long'.repeat(40)}.conf`])(
    '%s: gpu-owner and the driver keep their state in one directory',
    async (name) => {
      const started = describedBy(SERVER, name);
      const ran = await machine.runCommand(['run', '-n', '1', '--', 'nvidia-smi', '-L'], started);
      expect(ran).toMatchObject({ code: 0, stderr: '' });
      const machines = join(machine.directory, 'machines');
      expect(readdirSync(machines)).toHaveLength(1);
      expect(readdirSync(join(machines, readdirSync(machines)[0] as string)).sort()).toEqual([
        'locks',
        'root',
        'slots',
        'state',
      ]);
    },
  );

  test('its relative path holds in commands that change their directory', async () => {
    const started = describedBy(H200);
    const words = ['sh', '-c', 'cd / && nvidia-smi -L'];
    for (const args of [
      ['run', '-n', '1', '--', ...words],
      ['simulate', 'shell', '--', ...words],
    ]) {
      expect((await machine.runCommand(args, started)).stdout).toMatch(/^GPU 0: NVIDIA H200 /);
    }
    const { stdout } = await machine.runCommand(
      ['run', '--simulate', './server.conf', '-n1', '--', ...words],
      {
        cwd: machine.directory,
      },
    );
    expect(stdout).toMatch(/^GPU 0: NVIDIA H200 /);
  });

  test('an edited file is another machine, whose made-up UUIDs stay', async () => {
    const show = async (text: string) =>
      JSON.parse((await machine.run([tool, 'show', '--json'], describedBy(text))).stdout);
    const first = await show(H200);
    const second = await show(`${H200}numa = 1\n`);
    expect(second.machine).not.toBe(first.machine);
    expect(second.gpus[0].uuid).toBe(first.gpus[0].uuid);
    expect(await show(H200)).toEqual(first);
  });

  test('whose name begins with wsl describes a machine under WSL 2', async () => {
    const { stdout } = await machine.runCommand(['status', '--json'], describedBy(H200, 'wsl-laptop.conf'));
    expect(JSON.parse(stdout)[0]).toMatchObject({ state: 'free', processes: null, utilizationPercent: null });
  });
});

describe('mistakes in a machine file', () => {
  test.each<[text: string, message: RegExp]>([
    ['', /:1: no GPU; add a line `\[gpu\]`/],
    ['[gpus]', /:1: \[gpus\]: the only section is \[gpu\]/],
    ['driver 570\n', /:1: driver 570: expected `key = value`/],
    ['# x\n\ndriver =\n', /:3: driver has no value/],
    ['driver = new\n', /:1: driver = new: expected a version such as 570/],
    ['cuda = 12.x\n', /:1: cuda = 12.x: expected a version such as 12.8/],
    ['persistence = yes\n', /:1: persistence = yes: expected on or off/],
    [
      'memory = 3GiB\n',
      /:1: no key memory before the first \[gpu\]; there are driver, nvml, cuda, persistence and bridge/,
    ],
    ['bridge = 0+2 4\n', /:1: bridge = 0\+2 4: expected GPU-GPU LINKS \[down\], as in 0-2 4/],
    ['bridge = 1-1 4\n', /:1: bridge = 1-1 4: expected GPU-GPU LINKS/],
    ['bridge = 0-1 0\n', /:1: bridge = 0-1 0: expected GPU-GPU LINKS/],
    ['bridge = 0-1 19\n', /:1: bridge = 0-1 19: expected GPU-GPU LINKS/],
    ['bridge = 0-1 4 up\n', /:1: bridge = 0-1 4 up: expected GPU-GPU LINKS/],
    [`bridge = 0-1 4\n${H200}`, /bridge: there is no GPU 1; correct its number/],
    [`bridge = 0-1 10\nbridge = 0-1 9\n${H200}count = 2\n`, /bridge: GPU 0 has more than 18 NVLinks/],
    [`${H200}switch = 64\n`, /:3: switch = 64: expected a PCIe switch, 0 to 63/],
    ['cuda = 12.8\ncuda = 12.8\n', /:2: cuda is given twice/],
    ['[gpu]\n', /:1: this \[gpu\] has no name; add/],
    ['[gpu]\nmemory = 3GiB\n', /:2: a \[gpu\] begins with its name/],
    ['[gpu]\nname = NVIDIA H300\n', /:1: no model NVIDIA H300 is known; give its memory/],
    [`${H200}frobnicate = 1\n`, /:3: a \[gpu\] has no key frobnicate; there are name, count, .*power-limit/],
    [`${H200}memory = much\n`, /:3: memory = much: expected whole MiB/],
    [`${H200}memory = 1GiB\nused = 2GiB\n`, /:1: less memory than is reserved and used/],
    [`${H200}power-limit = 700 V\n`, /:3: power-limit = 700 V: expected a number up to 100000 W/],
    [`${H200}multiprocessors = 1.5\n`, /:3: multiprocessors = 1.5: expected a number/],
    [`${H200}count = 0\n`, /:3: count = 0: expected how many/],
    [`${H200}count = 64\n${H200}`, /:4: more than 64 GPUs/],
    [`${H200}count = 2\nbus = 0000:01:00.0\n`, /:1: bus, uuid and instance are those of one GPU/],
    [`${H200}bus = 1\n`, /:3: bus = 1: expected a PCI address such as 0000:19:00.0/],
    [`${H200}bus = 0000:02:00.0\n${H200}bus = 0000:01:00.0\n`, /:4: GPUs stand in the order of their buses/],
    [`${H200}uuid = GPU-1\n`, /:3: uuid = GPU-1: expected GPU-0000/],
    [`${H200}instance = 0 3g.40gb\n`, /:3: instance = 0 3g.40gb: expected PLACE PROFILE ID:ID/],
    [`${H200}instance = 0 1g.1gb 7:0\ninstance = 0 1g.1gb 8:0\n`, /:4: instance 0 is given twice/],
    [`${H200}mig = none\ninstance = 0 1g.1gb 7:0\n`, /:1: it has instances, but no MIG/],
    ['[gpu]\nname = NVIDIA RTX A4000\nmig = on\n', /:3: mig = on: NVIDIA RTX A4000 has no MIG/],
    [`${H200}unsupported = power,frob\n`, /:3: unsupported: no call frob; `gpu-owner simulate --help`/],
    [`${H200}compute-mode = x\n`, /:3: compute-mode = x: expected default/],
    ['[gpu]\nname = "H200"\n', /:2: name: values are letters/],
    ['[gpu]\nname = a\u0000b\n', /:2: a control character/],
  ])('%j', async (text, message) => {
    const { code, stdout, stderr } = await machine.run([tool, 'show'], describedBy(text));
    expect(stderr).toMatch(message);
    expect(stderr).toMatch(/^gpu-owner simulate: \.\/server\.conf:\d+: /);
    expect(stdout).toBe('');
    expect(code).toBe(64);
  });

  test('gpu-owner says that it is the file, with exit code 64', async () => {
    const started = describedBy(`${H200}memory = much\n`);
    const { code, stderr } = await machine.runCommand(['status'], started);
    expect(stderr).toMatch(/\.\/server\.conf:3: memory = much: expected whole MiB/);
    expect(stderr).toMatch(/the simulated machine 'server-[0-9a-f]{8}' can't be used/);
    expect(code).toBe(64);
  });

  test('a file that is missing, or none, is named', async () => {
    for (const [path, reason] of [
      ['./missing.conf', /'\.\/missing\.conf' can't be read \(ENOENT\): name a file/],
      ['./', /can't be used/],
    ] as const) {
      const env = { GPU_OWNER_SIMULATE: path };
      const { code, stderr } = await machine.runCommand(['status'], { env, cwd: machine.directory });
      expect(stderr).toMatch(reason);
      expect(code).toBe(64);
      const shown = await machine.run([tool, 'show'], { env, cwd: machine.directory });
      expect(shown.stderr).toMatch(/cannot be read: No such file|not a file that describes a machine/);
      expect(shown.code).toBe(64);
    }
  });
});
