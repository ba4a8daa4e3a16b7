// A reporter for vitest: writes how each file ended to the file that GPU_OWNER_TEST_REPORT names, and prints what was skipped.
// Titles say why.
import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';

export default class Report {
  onInit({ config }) {
    this.root = config.root;
    this.isFiltered = config.testNamePattern !== undefined;
  }

  onTestRunEnd(modules, errors) {
    const skipped = new Set();
    const files = modules.map((module) => {
      const path = relative(this.root, module.moduleId);
      const counts = { passed: 0, failed: 0, skipped: 0, pending: 0 };
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        counts[state]++;
        if (state !== 'skipped') continue;
        let outermost = test;
        while (outermost.parent.type === 'suite' && outermost.parent.options.mode === 'skip')
          outermost = outermost.parent;
        skipped.add(`skipped: ${path}: ${outermost.fullName}`);
      }
      // A process that ended early leaves its file unfinished.
      const isWhole =
        ['passed', 'skipped'].includes(module.state()) &&
        !errors.some(({ VITEST_TEST_PATH }) => VITEST_TEST_PATH === module.moduleId);
      return { path, isWhole, ...counts };
    });
    if (!this.isFiltered) for (const line of skipped) console.log(line);
    const isUnfinished = modules.some((module) => ['queued', 'pending'].includes(module.state()));
    // An error that names no file is that of an unfinished one, if there is one.
    const errorsOutside = isUnfinished ? 0 : errors.filter((error) => !error.VITEST_TEST_PATH).length;
    writeFileSync(process.env.GPU_OWNER_TEST_REPORT, JSON.stringify({ files, errorsOutside }));
  }
}
