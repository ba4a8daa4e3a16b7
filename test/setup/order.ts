// The order in which test files are begun.
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Small files that take longest. Vitest begins with large files, and the whole run would wait for these at its end. */
const FIRST = [
  'test/doctor/selftest.slow.test.ts',
  'test/python/python.test.ts',
  'test/jobs/waiting.slow.test.ts',
  'test/doctor/lock-directory.slow.test.ts',
  'test/packaging/package.test.ts',
  'test/docs/readme.test.ts',
  'test/experiments/queue/sqlite-conformance.slow.test.ts',
  'test/integration/race.test.ts',
  'test/fuzz/native.test.ts',
  'test/jobs/submit.slow.test.ts',
  'test/jobs/notification.slow.test.ts',
];

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const rank = ({ moduleId }: TestSpecification) => {
      const at = FIRST.indexOf(relative(this.ctx.config.root, moduleId));
      return at === -1 ? FIRST.length : at;
    };
    return sorted.sort((a, b) => rank(a) - rank(b));
  }
}
