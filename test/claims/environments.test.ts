import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { binaries } from '../support/binaries.ts';
import { Machine } from '../support/machine.ts';

let machine: Machine;
afterEach(() => machine.close());

/** A worker that does something over and over again, and is ended in the middle, over and over again. */
function endingWorkers(doing: string): string {
  return `
    import { Worker } from 'node:worker_threads';
    const source = ${JSON.stringify(`import * as gpuOwner from 'LIBRARY'; for (;;) { ${doing} }`)};
    new GPUOwner({ placeholder: 'none' }); // so that there are files which they open
    const url = new URL('data:text/javascript,' + encodeURIComponent(source.replace('LIBRARY', LIBRARY)));
    for (let i = 0; i < 15; i++) {
      const workers = [new Worker(url), new Worker(url)];
      await new Promise((resolve) => setTimeout(resolve, 40 + 10 * (i % 5)));
      gpuOwner.getGPUsSync();
      await Promise.all(workers.map((worker) => worker.terminate()));
    }
    console.log((await gpuOwner.getGPUs()).length);`;
}

test.each([
  ['looks', 'await gpuOwner.getGPUs(); await gpuOwner.getQueue();'],
  ['looks at once', 'gpuOwner.getGPUsSync(); await new Promise((resolve) => setTimeout(resolve));'],
])('a worker thread that %s can be ended at any time', async (_, doing) => {
  machine = new Machine(4);
  await machine.status();
  machine.set('latency=memory:2000');
  const library = `file://${process.cwd()}/dist/index.js`;
  const { code, signal, stdout, stderr } = await machine.runScript(
    `const LIBRARY = ${JSON.stringify(library)};${endingWorkers(doing)}`,
  );
  expect({ code, signal, stdout, stderr }).toEqual({ code: 0, signal: null, stdout: '4\n', stderr: '' });
});

test('a worker thread can end as soon as it has its answer', async () => {
  machine = new Machine(2);
  await machine.status();
  const source = `import('file://${process.cwd()}/dist/index.js').then(async (gpuOwner) => {
    await gpuOwner.getGPUs();
    process.exit();
  });`;
  // The thread that looked may still be busy with the answer; on a machine with little to do it seldom is, so 8 at a time.
  const { code, signal, stdout, stderr } = await machine.runScript(`
    import { once } from 'node:events';
    import { Worker } from 'node:worker_threads';
    let left = 120;
    const startMany = async () => {
      while (left-- > 0) await once(new Worker(${JSON.stringify(source)}, { eval: true }), 'exit');
    };
    await Promise.all(Array.from({ length: 8 }, startMany));
    console.log('alive');`);
  expect({ code, signal, stdout, stderr }).toEqual({ code: 0, signal: null, stdout: 'alive\n', stderr: '' });
});

test('a claim that fails because CUDA numbers are unknown leaves nothing in the environment', async () => {
  machine = new Machine(3);
  machine.set('gpu=0', 'hang=uuid');
  const { code, stdout, stderr } = await machine.runScript(`
    const refusal = () => {
      try {
        new GPUOwner({ devices: 1, visibleDevices: 'index', placeholder: 'none' });
      } catch (error) {
        return error.code;
      }
    };
    const before = process.env.CUDA_VISIBLE_DEVICES;
    console.log(refusal(), process.env.CUDA_VISIBLE_DEVICES === before);
    const owner = new GPUOwner({ devices: 2, placeholder: 'none' });
    console.log(process.env.CUDA_VISIBLE_DEVICES === owner.devices[0].uuid);`);
  expect({ code, stdout, stderr }).toEqual({ code: 0, stdout: 'ERR_DRIVER true\ntrue\n', stderr: '' });
});

test('two looks at a time leave the event loop alone, also where a GPU hangs', async () => {
  machine = new Machine(2);
  await machine.status();
  machine.set('gpu=1', 'hang=memory');
  const { stdout } = await machine.runScript(`
    let longest = 0;
    let last = performance.now();
    setInterval(() => { const now = performance.now(); longest = Math.max(longest, now - last); last = now; }, 10).unref();
    await new Promise((resolve) => setTimeout(resolve, 50));
    // A busy machine delays it now and then as well, a look that blocks it each time.
    for (let i = 0; i < 5 && (i === 0 || longest >= 400); i++) {
      longest = 0;
      await Promise.all([gpuOwner.getGPUs(), gpuOwner.getGPUs()]);
    }
    console.log(longest < 400 || longest);`);
  expect(stdout).toBe('true\n');
});

test('a worker thread that alone has the library can end while a call of the driver is out', async () => {
  machine = new Machine(2);
  await machine.status();
  const library = `file://${process.cwd()}/dist/index.js`;
  const worker = `
    import('${library}').then(async (gpuOwner) => {
      const { parentPort } = await import('node:worker_threads');
      await gpuOwner.getGPUs();
      parentPort.postMessage('ready');
      parentPort.once('message', async () => {
        parentPort.postMessage((await gpuOwner.getGPUs()).map(({ state }) => state).join());
      });
    });`;
  const { code, signal, stdout, stderr } = await machine.run([
    process.execPath,
    '--input-type=module',
    '-e',
    `import { once } from 'node:events';
    import { execFileSync } from 'node:child_process';
    import { Worker } from 'node:worker_threads';
    const set = (fault) => execFileSync(${JSON.stringify(join(binaries(), 'gpu-owner-simulator'))}, ['set', 'gpu=1', fault]);
    for (const ended of [true, false]) {
      const worker = new Worker(${JSON.stringify(worker)}, { eval: true });
      await once(worker, 'message');
      set('hang=memory');
      worker.postMessage('look');
      if (ended) console.log(...(await once(worker, 'message')));
      else await new Promise((resolve) => setTimeout(resolve, 200)); // the look is under way
      await worker.terminate();
      set('hang=off'); // the call returns, and its thread goes on
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    console.log('alive');`,
  ]);
  expect({ code, signal, stdout, stderr }).toEqual({
    code: 0,
    signal: null,
    stdout: 'free,unavailable\nalive\n',
    stderr: '',
  });
});
