// Runs one benchmark, in a process of its own, and tells run.js over the channel between them.
// run-one.js NAME DIRECTORY full|quick
import { load } from './benchmarks.js';
import { endLeftovers, inMemory, removeDirectories } from './leftovers.js';
import { checkTables } from './table.js';

const [name, directory, length] = process.argv.slice(2);
const tell = (message) => new Promise((resolve) => process.send(message, resolve));
process.once('disconnect', async () => {
  // The parent process is gone, and can't clean up.
  await endLeftovers(directory);
  removeDirectories(directory);
  process.exit(1);
});

try {
  const benchmark = await load(name);
  await tell({ title: benchmark.title, question: benchmark.question });
  const tables = await benchmark.run({
    quick: length === 'quick',
    directory,
    inMemory: () => inMemory(directory),
    leaveOut: (what, why) => tell({ leftOut: { what, why } }),
    log: (line) => tell({ log: line }),
  });
  checkTables(tables);
  await tell({ tables });
} catch (error) {
  await tell({ error: error instanceof Error ? error.message : String(error), stack: error?.stack });
}
process.exit();
