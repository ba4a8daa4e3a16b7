// The order in which test files are begun.
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** The files that take longest. Vitest begins with large files, and the whole run would wait for small ones at its end. */
const FIRST = [
  'test/fleet/moving.slow.test.ts',
  'test/sweeps/queue/bullmq.slow.test.ts',
  'test/python/python.test.ts',
  'test/jobs/waiting.slow.test.ts',
  'test/sweeps/manager.slow.test.ts',
  'test/integration/preemption.test.ts',
  'test/integration/lock-directory.test.ts',
  'test/jobs/submit.slow.test.ts',
  'test/integration/limits.test.ts',
  'test/integration/shares.test.ts',
  'test/check/selftest.slow.test.ts',
  'test/fleet/hosts.slow.test.ts',
  'test/docs/readme.test.ts',
  'test/jobs/array.slow.test.ts',
  'test/cli/completion.slow.test.ts',
  'test/integration/wait-queue.test.ts',
  'test/integration/bookings.test.ts',
  'test/views/web-page.slow.test.ts',
  'test/fleet/on.slow.test.ts',
  'test/sweeps/redis-promotion.slow.test.ts',
  'test/packaging/package.test.ts',
  'test/views/top.slow.test.ts',
  'test/jobs/time-limit.slow.test.ts',
  'test/jobs/state-directory.slow.test.ts',
  'test/sweeps/disaster.slow.test.ts',
  'test/agents/mcp.slow.test.ts',
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
