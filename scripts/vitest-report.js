// A reporter for vitest: writes how each file ended to the file that GPU_OWNER_TEST_REPORT names.
import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';

export default class Report {
  onInit({ config }) {
    this.root = config.root;
  }

  onTestRunEnd(modules, errors) {
    const files = modules.map((module) => {
      const counts = { passed: 0, failed: 0, skipped: 0, pending: 0 };
      for (const test of module.children.allTests()) counts[test.result().state]++;
      // A process that ended early leaves its file unfinished.
      const isWhole =
        ['passed', 'skipped'].includes(module.state()) &&
        !errors.some(({ VITEST_TEST_PATH: path }) => path === module.moduleId);
      return { path: relative(this.root, module.moduleId), isWhole, ...counts };
    });
    const isUnfinished = modules.some((module) => ['queued', 'pending'].includes(module.state()));
    // An error that names no file is that of an unfinished one, if there is one.
    const errorsOutside = isUnfinished ? 0 : errors.filter((error) => !error.VITEST_TEST_PATH).length;
    writeFileSync(process.env.GPU_OWNER_TEST_REPORT, JSON.stringify({ files, errorsOutside }));
  }
}
