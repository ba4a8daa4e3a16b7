// The library's own look at the GPUs, without what a claim adds to it. It is internal, so it is bundled for the benchmark.
import { bundled } from './measure.js';

export async function getLook() {
  const { lookSync } = await bundled(`export { lookSync } from './gpus/snapshot.ts';`);
  return lookSync;
}
