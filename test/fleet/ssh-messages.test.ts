import { describe, expect, test } from 'vitest';
import type { SSHResult } from '../../lib/fleet/ssh.ts';
import { explainSSH, isBeforeLogin, isLostLate, isTurnedAway } from '../../lib/fleet/ssh-messages.ts';

const ended = (errors: string, exitCode = 255): SSHResult => ({ exitCode, output: '', errors, cut: null });

/** Messages of OpenSSH 7.4 to 10 for LogLevel=VERBOSE. */
const BEFORE = [
  'ssh: Could not resolve hostname nowhere: Name or service not known',
  'ssh: connect to host a port 22: Connection refused',
  'ssh: connect to host a port 22: Connection timed out',
  'ssh: connect to host a port 22: No route to host',
  'Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out',
  'kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22',
  'kex_exchange_identification: read: Connection reset by peer',
  'ssh_exchange_identification: Connection closed by remote host',
  'bob@a: Permission denied (publickey,password).',
  'Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures',
  'Host key verification failed.',
  'No ED25519 host key is known for a and you have requested strict checking.\nHost key verification failed.',
  'Unable to negotiate with 10.0.0.1 port 22: no matching cipher found.',
  '/home/bob/.ssh/config: terminating, 1 bad configuration options',
];
const LATE = [
  'Authenticated to a ([10.0.0.1]:22) using "publickey".\nConnection closed by 10.0.0.1 port 22',
  'Authenticated to a ([10.0.0.1]:22) using "publickey".\nbob@b: Permission denied (publickey).',
  'Connection to a closed by remote host.',
  'Timeout, server a not responding.',
  'client_loop: send disconnect: Broken pipe',
  'packet_write_wait: Connection to 10.0.0.1 port 22: Broken pipe',
  'ssh_dispatch_run_fatal: Connection to 10.0.0.1 port 22: message authentication code incorrect',
  // Messages of a connection that is shared with others, or of an old version: before the login or after it.
  'Connection closed by 10.0.0.1 port 22',
  'Connection reset by 10.0.0.1 port 22',
  'mux_client_request_session: read from master failed: Connection reset by peer',
];
const SILENT = ['', 'Killed', 'Shared connection to a closed.'];

describe('whether a command may have run on a host that is lost', () => {
  test.each(BEFORE)('it has not: %j', (errors) => {
    expect([isBeforeLogin(ended(errors)), isLostLate(ended(errors))]).toEqual([true, false]);
    expect(explainSSH('a', errors)).toEqual({ code: expect.any(String), message: expect.any(String) });
  });

  test.each([...LATE, ...SILENT])('it may have: %j', (errors) => {
    expect(isBeforeLogin(ended(errors))).toBe(false);
    expect(isLostLate(ended(errors))).toBe(LATE.includes(errors));
  });

  test('these words are those of another program unless ssh has failed', () => {
    for (const errors of [...BEFORE, ...LATE])
      expect([isBeforeLogin(ended(errors, 1)), isLostLate(ended(errors, 1))]).toEqual([false, false]);
  });
});

test('only a host without time for a login is asked again', () => {
  expect(BEFORE.filter((errors) => isTurnedAway(ended(errors)))).toEqual(
    BEFORE.filter((errors) => errors.includes('exchange_identification')),
  );
});

test('the remedy for a changed key names what the file of keys has, not an alias', () => {
  const errors =
    '@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@\nHost key for [gpu1.example.org]:2222 has changed and you have requested strict checking.\nHost key verification failed.';
  expect(explainSSH('gpu1', errors)?.message).toContain("`ssh-keygen -R '[gpu1.example.org]:2222'`");
  expect(explainSSH('gpu1', errors.split('\n').slice(0, 3).join('\n'))?.message).toContain("-R 'gpu1'`");
});
