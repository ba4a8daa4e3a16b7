import { join } from 'node:path';
import { expect, test } from 'vitest';
import { pythonPath } from '../../lib/jobs/stand-ins.ts';
import { root } from '../support/machine.ts';

test('PYTHONPATH of a job keeps what was there, and has no empty entry', () => {
  const own = join(root, 'python/job');
  for (const [before, after] of [
    ['', own],
    ['/a:/b', `${own}:/a:/b`],
    [`/a:${own}`, `/a:${own}`],
    ['/bytes-\ufffd', undefined], // the variable stays in the environment as it is
  ]) {
    expect(pythonPath(before)).toEqual(after === undefined ? {} : { PYTHONPATH: after });
  }
});
