// How long programs that lock as gpu_lock and PID files do take from looking at a lock file to having written their own. In that time
// they don't see a claim that begins, ours as little as one of their own kind.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { summarize } from './measure.js';

const fixture = join(dirname(import.meta.dirname), 'test/conventions/fixtures/original.py');
const PROGRAMS = { gpu_lock: 'gpu_lock', 'PID files': 'pid-files' };

export const conventions = {
  title: 'Race windows of other conventions',
  question:
    'How long is the race window of programs that lock by files: from their check for a lock to their own lock?',
  async run({ directory, quick, leaveOut }) {
    if (spawnSync('python3', ['--version']).status !== 0) {
      leaveOut('gpu_lock and PID files', 'Python is not installed');
      return [];
    }
    const values = Object.fromEntries(Object.keys(PROGRAMS).map((name) => [name, []]));
    for (let turn = 0; turn < (quick ? 1 : 5); turn++) {
      for (const [name, convention] of Object.entries(PROGRAMS)) {
        const place = join(directory, `${convention}-${turn}`);
        mkdirSync(place);
        const words = [fixture, 'window', convention, place, quick ? '200' : '4000'];
        values[name].push(
          ...execFileSync('python3', words, { encoding: 'utf8' }).trim().split('\n').map(Number),
        );
      }
    }
    return [
      {
        name: 'window',
        title: 'From the check to the written lock',
        unit: 'us',
        note: 'Python programs with the same file operations as the originals, on a local file system',
        rows: Object.entries(values).map(([label, each]) => ({
          label,
          series: { 'their own': summarize(each) },
        })),
      },
    ];
  },
};
