// `web --listen PATH`: a Unix socket that only its owner reaches.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, mkdirSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { finished, Machine, NOBODY, output, python, until, whyNotNobody } from '../support/machine.ts';
import { freePort } from '../support/ports.ts';
import { Hosts, whyNoSSHD } from '../support/sshd.ts';

const noNobody = whyNotNobody();
const noSSHD = whyNoSSHD();

let machine: Machine;
let path: string;
beforeEach(() => {
  machine = new Machine(2);
  path = join(machine.directory, 'web.sock');
});
afterEach(() => machine.close());

async function start(listen = path) {
  const child = machine.startCommand(['web', '--listen', listen]);
  const url = new URL(await output(child, /^(http:\S+)$/m));
  return { child, token: url.hash.replace('#token=', ''), port: url.port };
}

function get(token: string, headers = {}): Promise<{ status: number; text: string }> {
  const all = { authorization: `Bearer ${token}`, host: 'localhost:8088', ...headers };
  return new Promise((resolve, reject) => {
    const asked = request({ socketPath: path, path: '/api/v1/gpus', headers: all }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (more) => (text += more));
      response.on('end', () => resolve({ status: response.statusCode as number, text }));
    });
    asked.on('error', reject).end();
  });
}

/** Why `web` doesn't listen there. */
async function refusal(listen = path): Promise<string> {
  const { code, stdout, stderr } = await machine.runCommand(['web', '--listen', listen]);
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
  expect(stderr).toMatch(/^gpu-owner: --listen .*: can't listen there: [^\n]*\n$/);
  return stderr;
}

test('the server answers on the socket with the rules of ports, and removes it after SIGTERM', async () => {
  const { child, token } = await start();
  expect(statSync(path).mode & 0o777).toBe(0o700);
  const { status, text } = await get(token);
  expect([status, JSON.parse(text).length]).toEqual([200, 2]);
  expect((await get('wrong')).status).toBe(401);
  expect((await get(token, { host: 'evil.example' })).status).toBe(403);
  child.kill('SIGTERM');
  expect((await finished(child)).signal).toBe('SIGTERM');
  expect(existsSync(path)).toBe(false);
});

test('the server prints the ssh command for another computer', async () => {
  const child = machine.startCommand(['web', '--listen', path]);
  expect(await output(child, /run there: (ssh.*)$/m)).toMatch(new RegExp(`^ssh -N -L 8088:${path} \\S+$`));
});

test.skipIf(noSSHD !== null)(`ssh forwards a port to the socket${noSSHD ?? ''}`, async () => {
  const { token } = await start();
  const hosts = await Hosts.start();
  hosts.add('server');
  try {
    const port = await freePort();
    const words = [
      '-F',
      hosts.configuration,
      '-N',
      '-o',
      'ExitOnForwardFailure=yes',
      '-L',
      `${port}:${path}`,
    ];
    const ssh = spawn('ssh', [...words, 'server'], { stdio: 'ignore' });
    const ask = () =>
      fetch(`http://127.0.0.1:${port}/api/v1/gpus`, { headers: { authorization: `Bearer ${token}` } });
    await until(() =>
      ask().then(
        ({ status }) => status === 200,
        () => false,
      ),
    );
    ssh.kill('SIGKILL');
  } finally {
    await hosts.close();
  }
});

test('a socket of a server that was killed is replaced, that of a living one is not', async () => {
  const first = await start();
  expect(await refusal()).toMatch(/a server listens there already/);
  expect((await get(first.token)).status).toBe(200);
  first.child.kill('SIGKILL');
  await finished(first.child);
  expect(statSync(path).isSocket()).toBe(true);
  const second = await start();
  expect((await get(first.token)).status).toBe(401);
  expect((await get(second.token)).status).toBe(200);
  second.child.kill('SIGSTOP'); // the server lives
  expect(await refusal()).toMatch(/a server listens there already/);
});

test('what is no socket stays, and says so', async () => {
  writeFileSync(path, 'precious');
  expect(await refusal()).toMatch(/something else/);
  const link = join(machine.directory, 'link.sock');
  symlinkSync(path, link);
  expect(await refusal(link)).toMatch(/something else/);
  expect(statSync(path).size).toBe(8);
  expect(await refusal(`${machine.directory}/nowhere/web.sock`)).toMatch(/there is no directory/);
  expect(await refusal(`${machine.directory}/${'x'.repeat(110)}`)).toMatch(/at most 107 bytes/);
});

test('a directory in which others may replace it is refused', async () => {
  for (const mode of [0o777, 0o1777, 0o770]) {
    const directory = join(machine.directory, String(mode));
    mkdirSync(directory);
    chmodSync(directory, mode);
    expect(await refusal(join(directory, 'web.sock'))).toMatch(
      /choose a directory that only you may write to/,
    );
    // A directory above counts as well, unless users can rename only their own files there.
    const inner = join(directory, 'mine');
    mkdirSync(inner, { mode: 0o700 });
    if (mode === 0o1777) expect((await start(join(inner, 'web.sock'))).token).not.toBe('');
    else expect(await refusal(join(inner, 'web.sock'))).toMatch(/others may replace/);
  }
});

test.skipIf(noNobody !== null)(`other users are kept out: ${noNobody ?? 'two users'}`, async () => {
  await start();
  const attempt = `import socket\nsocket.socket(socket.AF_UNIX).connect("${path}")`;
  const { code, stderr } = await machine.run([python, '-c', attempt], { uid: NOBODY });
  expect(code).toBe(1);
  expect(stderr).toMatch(/PermissionError/);
  // Nor is another user's directory, or socket, taken for one's own.
  const theirs = join(machine.directory, 'theirs');
  mkdirSync(theirs);
  chownSync(theirs, NOBODY, NOBODY);
  expect(await refusal(join(theirs, 'web.sock'))).toMatch(/others may replace/);
  const server = createServer().listen(join(machine.directory, 'foreign.sock'));
  await once(server, 'listening');
  chownSync(join(machine.directory, 'foreign.sock'), NOBODY, NOBODY);
  expect(await refusal(join(machine.directory, 'foreign.sock'))).toMatch(/a socket of nobody/);
  server.close();
});
