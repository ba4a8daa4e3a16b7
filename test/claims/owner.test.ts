import { userInfo } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Finished, finished, Machine, output, uuidOf } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(4);
});
afterEach(() => machine.close());

/** Returns what was printed, line by line; anything on standard error fails the test. */
async function linesOf(running: Promise<Finished>): Promise<string[]> {
  const { stdout, stderr } = await running;
  expect(stderr).toBe('');
  return stdout.trim().split('\n');
}

function lines(source: string, env = {}): Promise<string[]> {
  return linesOf(machine.runScript(source, { env }));
}

/** Runs a program of fixtures/. */
function runFixture(name: string, ...args: string[]): Promise<Finished> {
  return machine.run([process.execPath, join(import.meta.dirname, 'fixtures', name), ...args]);
}

describe('an owner', () => {
  test('has one GPU by default, and shows it to CUDA', async () => {
    expect(
      await lines(`
        const owner = new GPUOwner();
        console.log(JSON.stringify(owner.devices[0]));
        console.log(owner.visibleDevices, process.env.CUDA_VISIBLE_DEVICES);`),
    ).toEqual([
      `{"index":0,"instance":null,"uuid":"${uuidOf(0)}","name":"Simulated GPU","pciBusId":"00000000:01:00.0","totalMemoryBytes":85899345920,"shareBytes":null}`,
      `${uuidOf(0)} ${uuidOf(0)}`,
    ]);
  });

  test('shows indices where old software wants them', async () => {
    expect(
      await lines(`
        new GPUOwner({ count: 2, devices: '2-3', visibleDevices: 'index' });
        console.log(process.env.CUDA_VISIBLE_DEVICES, process.env.CUDA_DEVICE_ORDER);`),
    ).toEqual(['2,3 PCI_BUS_ID']);
  });

  test('is seen by tools that only look at the driver', async () => {
    const child = machine.start([
      process.execPath,
      '--input-type=module',
      '-e',
      machine.script(`new GPUOwner(2); console.log('claimed'); setInterval(() => {}, 1000)`),
    ]);
    await output(child, /claimed/);
    expect([0, 1, 2, 3].map((gpu) => machine.processes(gpu))).toEqual([[child.pid], [child.pid], [], []]);
    child.kill('SIGKILL');
    await finished(child);
    expect(machine.processes(0)).toEqual([]);
  });

  test('gives everything back on release, once, and with `using` in spirit', async () => {
    expect(await linesOf(runFixture('releases-twice.mjs'))).toEqual([
      '0,1,2 undefined',
      'free,free,free,free',
      'free,free,free,free',
    ]);
  });

  test('leaves a variable alone that somebody else has changed meanwhile', async () => {
    expect(
      await lines(`
        const owner = new GPUOwner({ placeholder: 'none' });
        process.env.CUDA_VISIBLE_DEVICES = 'mine';
        owner.release();
        console.log(process.env.CUDA_VISIBLE_DEVICES);`),
    ).toEqual(['mine']);
  });

  test('without placeholder comes and goes beside others; the variable is their union', async () => {
    expect(await linesOf(runFixture('side-by-side.mjs'))).toEqual(['0,1 0 1', '1', 'undefined']);
  });

  test('says at once that it waits for GPUs which the process itself holds', async () => {
    const { code, stdout, stderr } = await machine.runScript(`
      const owner = new GPUOwner(3, { placeholder: 'none' });
      const told = new Promise((resolve) => process.once('warning', resolve));
      const waiting = GPUOwner.acquire(2, { placeholder: 'none' });
      const { name, message } = await told; // the claim waits without limit
      console.log(name, message.replace(/\\d+:\\d+:\\d+/g, 'TIME'));
      owner.release();
      console.log((await waiting).devices.length);
      await GPUOwner.acquire({ placeholder: 'none', maxWait: 0, devices: '2-3' }); // doesn't wait`);
    const held = [0, 1, 2].map((gpu) => `GPU ${gpu} (claimed at TIME)`).join(', ');
    expect({ code, stdout }).toEqual({
      code: 0,
      stdout: `GPUOwnerWarning a claim waits, and this process itself holds ${held}: release() what it doesn't need.\n2\n`,
    });
    expect(stderr.match(/a claim waits/g)).toHaveLength(1);
  });

  test('never gets a GPU twice in the same process', async () => {
    expect(
      await lines(`
        const owners = [1, 2, 3, 4].map(() => new GPUOwner({ placeholder: 'none' }));
        console.log(owners.map(({ devices }) => devices[0].index).join());
        try { new GPUOwner({ placeholder: 'none' }) } catch (error) { console.log(error.code, error.gpus.length) }`),
    ).toEqual(['0,1,2,3', 'ERR_GPU_UNAVAILABLE 4']);
  });
});

describe('CUDA reads CUDA_VISIBLE_DEVICES once', () => {
  test('a claim after the first must be among its GPUs, or the error says which claim bound them', async () => {
    expect(await linesOf(runFixture('bound-to-first.mjs'))).toEqual([
      'ERR_CUDA_INITIALIZED true',
      '2',
      'ERR_CUDA_INITIALIZED true',
      'ERR_CUDA_INITIALIZED true',
    ]);
  });

  test('a claim is refused where something else has initialised CUDA', async () => {
    const build = process.env.GPU_OWNER_BUILD ?? `${process.cwd()}/build/Release`;
    const { stdout, stderr } = await runFixture('claims-after-cuda.mjs', build);
    expect({ stdout, stderr }).toEqual({ stdout: 'ERR_CUDA_INITIALIZED\nundefined\n', stderr: '' });
  });
});

describe('an inherited CUDA_VISIBLE_DEVICES', () => {
  test.each([
    ['2,3', '2,3'],
    [`${uuidOf(3)},${uuidOf(1)}`, '1,3'],
    ['0,GPU-nonsense,1', 'ERR_INVALID_ARGUMENT'],
    ['', 'ERR_INVALID_ARGUMENT'],
    ['1,1', 'ERR_INVALID_ARGUMENT'],
  ])('%j limits what may be claimed', async (value, expected) => {
    const { stdout } = await machine.runScript(
      `try { console.log(new GPUOwner(2).devices.map(({ index }) => index).join()) } catch (error) { console.log(error.code) }`,
      { env: { CUDA_VISIBLE_DEVICES: value } },
    );
    expect(stdout.trim()).toBe(expected);
  });

  test('counts as CUDA does where models differ', async () => {
    await machine.close();
    machine = new Machine('mixed');
    const names = (await machine.status()).map(({ name }) => name);
    const { stdout } = await machine.runScript('console.log(new GPUOwner().devices[0].name)', {
      env: { CUDA_VISIBLE_DEVICES: '0' },
    });
    const { stdout: bus } = await machine.runScript('console.log(new GPUOwner().devices[0].name)', {
      env: { CUDA_VISIBLE_DEVICES: '0', CUDA_DEVICE_ORDER: 'PCI_BUS_ID' },
    });
    expect(bus.trim()).toBe(names[0]);
    expect(stdout.trim()).not.toBe(names[0]); // the fastest is not the first on the bus
  });
});

describe('a claim that fails', () => {
  test('gives everything back when the placeholder fails', async () => {
    await machine.status();
    machine.set('gpu=1', 'error=cuda-alloc:2');
    const { stdout, stderr } = await machine.runScript(`
        try { new GPUOwner({ count: 2, devices: '0-1' }) } catch (error) { console.log(error.code, /GPU 1/.test(error.message)) }
        console.log(process.env.CUDA_VISIBLE_DEVICES, (await gpuOwner.getGPUs()).map(({ state }) => state).join());`);
    expect(stdout).toBe('ERR_PLACEHOLDER true\nundefined free,free,free,free\n');
    expect(stderr).toContain('GPU 1 is left out: CUDA failed with 2 (CUDA_ERROR_OUT_OF_MEMORY)');
    expect(machine.processes(0)).toEqual([]);
  });

  test('an error has the reason for every GPU', async () => {
    machine.set('gpu=0', 'lost=on');
    machine.set('gpu=1', 'hidden-memory=3GiB');
    expect(
      await lines(`
        new GPUOwner({ devices: [2], placeholder: 'none' });
        try { new GPUOwner(2) } catch (error) {
          for (const { index, reason } of error.gpus) console.log(index, reason.slice(0, 20));
        }`),
    ).toEqual([
      '0 the GPU has fallen o',
      '1 busy: 3 GiB in use, ',
      `2 ${`leased by ${userInfo().username} since`.slice(0, 20)}`,
      '3 free',
    ]);
  });
});

test('worker threads are refused', async () => {
  expect(
    await lines(`
      import { Worker } from 'node:worker_threads';
      const source = ${JSON.stringify(machine.script(`try { new GPUOwner() } catch (error) { console.log(error.code) }`))};
      new Worker(new URL('data:text/javascript,' + encodeURIComponent(source.replace('import * as gpuOwner from "', 'import * as gpuOwner from "file://'))));`),
  ).toEqual(['ERR_WORKER_THREAD']);
});

test('findFreeGPUs gives what could be claimed, most free memory first', async () => {
  machine.set('gpu=0', 'hidden-memory=50MiB');
  expect(
    await lines(`
      new GPUOwner({ devices: [2], placeholder: 'none' });
      console.log((await gpuOwner.findFreeGPUs()).map(({ index }) => index).join());
      console.log(gpuOwner.findFreeGPUsSync({ exclude: 3 }).map(({ index }) => index).join());
      console.log(gpuOwner.getGPUsSync().map(({ state }) => state).join());`),
  ).toEqual(['1,3,0', '1,0', 'free,free,leased,free']);
});
