// `gpu-owner selftest` where all is well, and what its report tells. For faults, see selftest.slow.test.ts.
import { hostname, userInfo } from 'node:os';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checksThatNeed } from '../../lib/check/checks.ts';
import { anonymize } from '../../lib/check/finding.ts';
import { Machine, uuidOf } from '../support/machine.ts';

let machine: Machine;
beforeEach(() => {
  machine = new Machine(3);
});
afterEach(() => machine.close());

test('on a plain machine no check of the self-test fails, and nothing stays claimed', async () => {
  const { code, stdout, stderr } = await machine.runCommand(['selftest', '--json']);
  const report = JSON.parse(stdout);
  expect(report.checks.filter(({ result }: { result: string }) => result === 'failed')).toEqual([]);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(Object.keys(report)).toEqual(['driver', 'gpus', 'checks']);
  expect(report.driver).toMatchObject({ version: expect.stringMatching(/^\d+\.\d+/), simulated: '3' });
  expect(report.gpus.map(({ index }: { index: number }) => index)).toEqual([0, 1]);
  expect(report.checks.map(({ name }: { name: string }) => name)).toEqual(checksThatNeed('claim', 'gpu'));
  for (const check of report.checks) {
    expect(Object.keys(check)).toEqual(['name', 'result', 'detail', 'remedy']);
    expect(check.detail).toMatch(/\S/);
    expect(check.remedy).toBeNull();
  }
  expect(await machine.states()).toEqual(['free', 'free', 'free']);
  // Nothing personal, not even as part of a value.
  const values = JSON.stringify(
    [report.driver, report.gpus, report.checks].map((each) => Object.values(each)),
  );
  expect(values).not.toMatch(/(GPU|MIG)-[0-9a-f]{8}/);
  for (const secret of [machine.directory, process.cwd(), process.execPath, 'gpu-owner.cjs'])
    expect(values).not.toContain(secret);
  const details = report.checks.map(({ detail }: { detail: string }) => detail).join('\n');
  expect(details).not.toMatch(new RegExp(`\\b(${hostname()}|${userInfo().username})\\b`));
});

test('if no GPU is free the self-test says why, and exits with 75', async () => {
  const holder = machine.startCommand(['hold', '-n', '3', '--placeholder', 'none']);
  await new Promise((resolve) => holder.stdout?.once('data', resolve));
  const { code, stdout, stderr } = await machine.runCommand(['selftest', '--json']);
  expect({ code, stdout }).toEqual({ code: 75, stdout: '' });
  expect(stderr).toMatch(/^gpu-owner: 1 GPU asked for, none is free:\n {2}GPU 0: leased by /);
  holder.stdin?.end();
});

test('the report has nothing that tells whose machine it is', () => {
  const person = { user: 'alice', home: '/data/people/alice', host: 'gpu7.lab.example' };
  const hidden = (text: string) => anonymize(text, person);
  expect(hidden('/data/people/alice/x.so, /home/bob/y, /usr/lib/z.so')).toBe('~/x.so, ~/y, /usr/lib/z.so');
  expect(hidden(`${uuidOf(1)} and MIG-${uuidOf(2)}/1/0`)).toBe('GPU-… and MIG-…');
  expect(hidden('leased by alice on gpu7 (gpu7.lab.example), not malice')).toBe(
    'leased by USER on HOST (HOST), not malice',
  );
  expect(anonymize('As root: reboot', { ...person, user: 'root' })).toBe('As root: reboot');
  expect(anonymize(`${userInfo().homedir}/x`)).not.toContain(userInfo().homedir);
});
