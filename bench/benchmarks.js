// All benchmarks, in the order in which they run. Each file exports, by its name here:
//   title      a heading
//   question   what is asked, in a sentence
//   run(bench) measures, and returns tables; see CONTRIBUTING.md for their form
// A benchmark is loaded only where it runs, in a process of its own, so that one that can't be loaded doesn't stop the others.
const FILES = {
  snapshot: './snapshot.js',
  claim: './claim.js',
  start: './start.js',
  handover: './handover.js',
  contention: './contention.js',
  idle: './idle.js',
  queues: './queues.js',
};

export const names = Object.keys(FILES);

export async function load(name) {
  const benchmark = (await import(FILES[name]))[name];
  if (benchmark === undefined) throw new Error(`${FILES[name]} exports no '${name}'`);
  return benchmark;
}
