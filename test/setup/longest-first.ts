// The order of test files: those that take longest first, so that no processor idles while another is at the last one. Without a
// cache of how long they took, as in a fresh clone, Vitest knows only how large they are.
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** They take more than 15 s, whatever their size. A name that is missing here costs time, and nothing else. */
const LONGEST = [
  'test/fuzz/native.test.ts',
  'test/experiments/queue/bullmq.test.ts',
  'test/experiments/disaster.test.ts',
  'test/experiments/manager.test.ts',
  'test/python/python.test.ts',
  'test/integration/line.test.ts',
  'test/readme.test.ts',
  'test/integration/nested.test.ts',
  'test/experiments/run.test.ts',
  'test/experiments/queue/sqlite-conformance.test.ts',
  'test/experiments/chaos.test.ts',
  'test/integration/lock-directory.test.ts',
  'test/integration/race.test.ts',
  'test/integration/line-patience.test.ts',
  'test/conventions/race.test.ts',
  'test/doctor/lock-directory.test.ts',
  'test/experiments/results/trouble.test.ts',
  'test/experiments/worker/chaos.test.ts',
  'test/experiments/worker/worker.test.ts',
  'test/experiments/manager-and-workers.test.ts',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const place = LONGEST.indexOf(relative(this.ctx.config.root, moduleId));
      return place < 0 ? LONGEST.length : place;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}
