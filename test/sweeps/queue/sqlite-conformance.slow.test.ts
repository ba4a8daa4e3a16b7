import { join } from 'node:path';
import { testConformance } from './conformance.ts';

testConformance({
  name: 'SQLite',
  make: async (directory) => ({ url: `sqlite:${join(directory, 'queue.db')}`, remove: async () => {} }),
  withPassword: null,
  recovery: 10_000,
  batch: 1_000,
  seesProcesses: true,
});
