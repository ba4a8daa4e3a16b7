import { afterEach, describe, expect, test } from 'vitest';
import { checkEnvironment } from '../../lib/check/environment.ts';
import { type SystemSigns as System, whichContainer } from '../../lib/gpus/containers.ts';
import { because, diagnosisOf, said } from '../support/doctor.ts';
import { command, Machine, UNSHARE, whyNoNamespace } from '../support/machine.ts';

const PLAIN = '22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:5 / /proc rw - proc proc rw\n';

/** A machine on which nothing is remarkable, but for what is given. */
function world(files: Record<string, string> = {}, more: Partial<System> = {}): System {
  const all: Record<string, string> = {
    '/proc/self/mountinfo': PLAIN,
    '/proc/self/cgroup': '0::/user.slice/user-1000.slice/session-1.scope\n',
    '/proc/sys/kernel/osrelease': '6.8.0-45-generic\n',
    '/proc/self/ns/pid': 'pid:[4026531836]',
    ...files,
  };
  return {
    exists: (path) => Object.hasOwn(all, path),
    read: (path) => all[path] ?? '',
    readlink: (path) => all[path] ?? '',
    env: {},
    ...more,
  };
}

function found(of: System): Record<string, string> {
  const findings: Record<string, string> = {};
  const add = (id: string, text: string, remedy?: string | null) => {
    findings[id] = `${text} -> ${remedy}`;
  };
  checkEnvironment({ add, step: () => {} }, of);
  return findings;
}

test('an ordinary environment is ok', () => {
  expect(Object.keys(found(world()))).toEqual(['surroundings']);
});

describe('whichContainer', () => {
  test.each([
    ['Docker', world({ '/.dockerenv': '' })],
    ['Podman', world({ '/run/.containerenv': '' })],
    ['Apptainer', world({}, { env: { APPTAINER_NAME: 'x.sif' } })],
    ['systemd-nspawn', world({}, { env: { container: 'systemd-nspawn' } })],
    ['Kubernetes', world({}, { env: { KUBERNETES_SERVICE_HOST: '10.0.0.1' } })],
    ['docker', world({ '/proc/self/cgroup': '12:pids:/docker/0123abc\n' })],
    ['kubepods', world({ '/proc/self/cgroup': '0::/kubepods.slice/kubepods-burstable.slice/x\n' })],
  ])('knows a container of %s', (name, of) => {
    expect(whichContainer(of)).toBe(name);
    expect(found(of)).toEqual({
      container: expect.stringMatching(`This is a container \\(${name}\\).*-v /run/lock`),
    });
  });

  test('finds none on an ordinary machine', () => {
    expect(whichContainer(world())).toBeNull();
    expect(whichContainer(world({ '/proc/self/cgroup': '0::/system.slice/docker.service\n' }))).toBeNull();
  });
});

test('a private PID namespace is a note', () => {
  const of = world({ '/proc/self/ns/pid': 'pid:[4026532999]' });
  expect(found(of)).toEqual({ 'pid-namespace': expect.stringMatching(/Leases are not affected/) });
  expect(found(world({ '/proc/self/ns/pid': '' }))).toHaveProperty('surroundings'); // not to be had
});

test('a private /tmp is a warning', () => {
  const mounts = `${PLAIN}31 22 254:0 /tmp/systemd-private-0a1-web.service-x/tmp /tmp rw - ext4 /dev/vda rw\n`;
  const of = world({ '/proc/self/mountinfo': mounts });
  expect(found(of)).toEqual({
    'private-tmp': expect.stringMatching(/^\/tmp is private to this service.*PrivateTmp=no/),
  });
  const plain = `${PLAIN}31 22 0:30 / /tmp rw - tmpfs tmpfs rw\n`;
  expect(Object.keys(found(world({ '/proc/self/mountinfo': plain })))).toEqual(['surroundings']);
});

test('WSL is a note', () => {
  const of = world({ '/proc/sys/kernel/osrelease': '5.15.153.1-microsoft-standard-WSL2\n' });
  expect(Object.keys(found(of))).toEqual(['wsl']);
  // A kernel that its user has built.
  expect(Object.keys(found(world({ '/dev/dxg': '' })))).toEqual(['wsl']);
});

describe('the doctor itself', () => {
  const noNamespace = whyNoNamespace();
  let machine: Machine | undefined;
  afterEach(() => machine?.close());

  test.skipIf(noNamespace !== null)(`says that it is in a PID namespace${because(noNamespace)}`, async () => {
    machine = new Machine(1);
    const { code, stdout, stderr } = await machine.run([
      ...UNSHARE,
      process.execPath,
      command,
      'doctor',
      '--json',
    ]);
    expect(code).toBe(0);
    expect(said(diagnosisOf(code, stdout, stderr), 'pid-namespace')).toMatch(/isn't the machine's/);
  });
});
