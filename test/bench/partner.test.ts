import { spawn } from 'node:child_process';
import { expect, test } from 'vitest';
import { Partner } from '../../bench/measure.js';

test('a benchmark says how a process ended that it talked to', async () => {
  const partner = new Partner(spawn('sh', ['-c', 'read line; echo "heard $line"; exit 3']));
  partner.tell('now');
  expect(await partner.heard()).toBe('heard now');
  partner.tell('again');
  await expect(partner.heard()).rejects.toThrow('a process that should claim has ended: exit code 3');
});
