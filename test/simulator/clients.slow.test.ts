// Programs of others on simulated machines: they judge whether the simulated driver is one.
import { spawn, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { nvtop, pythonClients } from '../support/clients.ts';
import { because } from '../support/doctor.ts';
import { libraries, Simulated, until } from '../support/simulated.ts';

const fixture = (name: string) => join(import.meta.dirname, 'fixtures', name);
const python = pythonClients();
const top = nvtop();
const torch = spawnSync('python3', ['-c', 'import torch'], { encoding: 'utf8' });

const machines: Simulated[] = [];
afterAll(() => {
  for (const machine of machines) machine[Symbol.dispose]();
});

function open(name: string): Simulated {
  const machine = new Simulated(name);
  machines.push(machine);
  return machine;
}

function environment(machine: Simulated): NodeJS.ProcessEnv {
  return {
    ...machine.environment,
    LD_LIBRARY_PATH: libraries,
    PYTHONPATH: python.directory ?? '',
    HOME: machine.directory,
    PYTHONWARNINGS: 'ignore',
  } as NodeJS.ProcessEnv;
}

function runPython(machine: Simulated, ...args: string[]): string {
  const { status, stdout, stderr } = spawnSync('python3', args, {
    encoding: 'utf8',
    env: environment(machine),
  });
  expect(stderr).toBe('');
  expect(status, stdout).toBe(0);
  return stdout;
}

/** The paths of all nulls in a value. */
function nulls(value: unknown, path = ''): string[] {
  if (value === null) return [path];
  if (typeof value !== 'object') return [];
  return Object.entries(value as object).flatMap(([key, each]) => nulls(each, `${path}/${key}`));
}

describe.skipIf(python.reason !== null)(`from PyPI${because(python.reason)}`, () => {
  /** Getters of MIG instances, asked of a whole GPU. */
  const OF_INSTANCES = [
    'nvmlDeviceGetComputeInstanceId',
    'nvmlDeviceGetDeviceHandleFromMigDeviceHandle',
    'nvmlDeviceGetGpuInstanceId',
  ];

  test.each(['h200x8', 'a100x4-mig'])(
    '%s: every getter of pynvml answers, or says that this is not supported',
    (name) => {
      const answers: Record<string, unknown> = JSON.parse(runPython(open(name), fixture('getters.py'), '0'));
      expect(Object.keys(answers).length).toBeGreaterThan(130);
      // Drivers before 580 lack functions of this pynvml.
      const isOlder = name === 'h200x8';
      const missing = Object.values(answers).filter((answer) => answer === 'NVMLError_FunctionNotFound');
      expect(missing.length > 0).toBe(isOlder);
      const others = Object.entries(answers).filter(([, answer]) =>
        /^NVMLError_(?!NotSupported|FunctionNotFound)/.test(String(answer)),
      );
      expect(Object.fromEntries(others)).toEqual(
        Object.fromEntries(OF_INSTANCES.map((getter) => [getter, 'NVMLError_InvalidArgument'])),
      );
    },
  );

  test('pynvml is woken by an XID error', async () => {
    const machine = open('2');
    const child = spawn('python3', [fixture('xid.py')], { env: environment(machine) });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (part) => {
      text += part;
    });
    await until(() => text.includes('waiting'));
    machine.set('gpu=1', 'xid=48');
    await until(() => child.exitCode !== null);
    expect(text).toBe('waiting\n8 48 1\n');
  });

  test('gpustat knows everything but the speed of fans that the card has not', async () => {
    const machine = open('h200x8');
    await machine.occupy('3', '--memory', '20GiB', '--name', 'train', '--utilization', '75');
    const { gpus } = JSON.parse(runPython(machine, '-m', 'gpustat', '--json'));
    expect(gpus).toHaveLength(8);
    expect(nulls(gpus)).toEqual(Array.from({ length: 8 }, (_, i) => `/${i}/fan.speed`));
    expect(gpus[3]).toMatchObject({
      'utilization.gpu': 75,
      processes: [{ command: 'train', full_command: ['train'] }],
    });
  });

  test('GPUtil, nvsmi and readers of XML understand nvidia-smi', async () => {
    const machine = open('h200x8');
    await machine.occupy('3', '--memory', '20GiB', '--name', 'train', '--utilization', '75');
    machine.environment.PATH = `${join(libraries, 'bin')}:${process.env.PATH}`;
    expect(JSON.parse(runPython(machine, fixture('smi_readers.py')))).toEqual({
      gputil: [8, 75, 143771, 20900],
      nvsmi: [8, 75, 'train'],
      xml: [8, '75 %', 'train', 'Disabled'],
    });
  });

  test('nvitop shows MIG instances, up to a gap', async () => {
    const machine = open('a100x4-mig');
    await machine.occupy('1:2', '--memory', '2GiB', '--name', 'train', '--utilization', '50');
    const text = runPython(machine, '-m', 'nvitop', '-1', '--ascii');
    expect(text).not.toMatch(/Traceback|Error|ERROR/);
    expect(text.match(/^\| 1:\d +1g\.10gb @ GI\/CI: ?\d+\/0 \|/gm)).toHaveLength(7);
    expect(text).toMatch(/^\| 1:2 .*2464MiB \/ 10240MiB \| BAR1: +2\.00MiB/m);
    // GPU 0 has slots 0, 2, 3 and 4: nvitop ends at the first empty one.
    expect(text.match(/^\| 0:\d /gm)).toHaveLength(1);
  });
});

test.skipIf(torch.status !== 0)(`PyTorch counts the GPUs${because(torch.status ? 'no torch' : null)}`, () => {
  const code = 'import torch.cuda as c; print(c._device_count_nvml(), c.clock_rate(0), c.power_draw(0))';
  expect(runPython(open('h200x8'), '-c', code)).toBe('8 345 76000\n');
});

describe.skipIf(top.reason !== null)(`nvtop${because(top.reason)}`, () => {
  /** The screen of nvtop as soon as it shows `pattern`. */
  async function screen(machine: Simulated, pattern: RegExp): Promise<string> {
    const child = spawn('script', ['-qec', `stty cols 200 rows 60; exec '${top.program}'`, '/dev/null'], {
      env: { ...environment(machine), TERM: 'xterm' },
    });
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (part) => {
      text += part;
    });
    const shown = () =>
      text
        // biome-ignore lint/suspicious/noControlCharactersInRegex: the terminal's commands: steps to the right are blanks
        .replace(/\x1b\[\d*C/g, ' ')
        // biome-ignore lint/suspicious/noControlCharactersInRegex: as above
        .replace(/\x1b(\[[\d;?]*[a-zA-Z]|[()][A-Z0-9]|[=>])/g, '');
    try {
      await until(() => pattern.test(shown()));
      return shown();
    } finally {
      child.stdin.end('q');
      await until(() => child.exitCode !== null);
    }
  }

  test('shows clocks, temperature, power and the PCIe link of every GPU of a server', async () => {
    const machine = open('h200x8');
    await machine.occupy('0', '--memory', '100GiB', '--name', 'train', '--utilization', '90');
    const text = await screen(machine, /Device 7[\s\S]*train/);
    for (let gpu = 0; gpu < 8; gpu++)
      expect(text).toMatch(new RegExp(`Device ${gpu} \\[NVIDIA H200\\] PCIe GEN 5@16x RX: [\\d.]+ \\wiB/s`));
    expect(text).toMatch(/GPU 1830MHz MEM 3201MHz TEMP {2}60.+FAN N\/A% POW 556 \/ 700 W/);
    expect(text.match(/GPU 345MHz +MEM 3201MHz TEMP {2}29/g)).toHaveLength(7);
  });
});
