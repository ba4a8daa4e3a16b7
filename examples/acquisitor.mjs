// Shows that claims are made one at a time: claims GPUs, with an exaggerated pause between looking which are free and taking
// them. That is the moment in which two programs that only look would both take the same GPU.
//
//   node examples/acquisitor.mjs --id 1 --gpus 1 & node examples/acquisitor.mjs --id 2 --gpus 2; wait
//
// On a machine with 3 free GPUs, or with `--simulate 3` on both, the log shows that one waits until the other has taken its GPU.
//
//   --pause SECONDS  between looking and taking (default 2)
//   --work SECONDS   how long to keep the GPUs (default 5)
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { subscribe } from 'node:diagnostics_channel';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    id: { type: 'string', default: '1' },
    gpus: { type: 'string', default: '1' },
    pause: { type: 'string', default: '2' },
    work: { type: 'string', default: '5' },
    simulate: { type: 'string' },
  },
});
if (values.simulate !== undefined) process.env.GPU_OWNER_SIMULATE = values.simulate;

function log(message, level = 'INFO') {
  const time = new Date().toISOString().replace('T', ' ').replace('.', ',').replace('Z', '');
  console.log(`GPUOwner${values.id} ${time} [${level}] ${message}`);
}

/** Nothing else happens in this process meanwhile, as if the driver were very slow. */
function sleep(seconds) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Number(seconds) * 1000);
}

// The library tells how far a claim has come.
const steps = {
  driver: () => log('acquiring lock'),
  'acquisition-lock': () => log('lock acquired'),
  chosen: () => {
    log(`has chosen, and pauses for ${values.pause} s before taking`);
    sleep(values.pause);
  },
  leased: () => log('took them'),
  unlocked: () => log('lock released'),
};
subscribe('gpu-owner:step', ({ step }) => steps[step]?.());

const { GPUOwner, GPUOwnerError } = await import('../dist/index.js');
try {
  // By default, a claimant that decides for more than 2 s is skipped, in case it was stopped.
  const owner = new GPUOwner({ count: Number(values.gpus), lockTimeout: '10m' });
  log(`Set CUDA_VISIBLE_DEVICES=${owner.visibleDevices}`);
  sleep(values.work);
  owner.release();
  log('Finished');
} catch (error) {
  if (!(error instanceof GPUOwnerError)) throw error;
  log(error.message, 'ERROR');
  process.exitCode = 1;
}
