// Many jobs that have ended, without running each of them.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Copies the job number 1, which has ended, until there are `count`.
 * @param {string} state the user's state directory @param {number} count
 */
export function makeEndedJobs(state, count) {
  const all = join(state, 'gpu-owner/jobs');
  const [machine = ''] = readdirSync(all);
  const original = join(all, machine, '1');
  const files = readdirSync(original).map((name) => ({
    name,
    text: readFileSync(join(original, name), 'latin1'),
  }));
  const job = files.find(({ name }) => name === 'job')?.text;
  if (!job?.includes('"id":1,')) throw new Error(`${original} is not of the form that is copied`);
  for (let id = 2; id <= count; id++) {
    const copy = join(all, machine, String(id));
    mkdirSync(copy, { mode: 0o700 });
    for (const { name, text } of files) {
      const own = name === 'job' ? text.replace('"id":1,', `"id":${id},`) : text;
      writeFileSync(join(copy, name), own, { encoding: 'latin1', mode: 0o600 });
    }
  }
}
