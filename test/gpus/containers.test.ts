import { afterEach, describe, expect, it, vi } from 'vitest';
import { isWSL, isWSLKernel, mountPointOf, REAL_SIGNS, whichContainer } from '../../lib/gpus/containers.ts';

afterEach(() => vi.unstubAllEnvs());

/** A machine with these files, and no others. */
function machine(files: Record<string, string>) {
  const exists = (path: string) => Object.hasOwn(files, path);
  return { ...REAL_SIGNS, exists, read: (path: string) => files[path] ?? '' };
}

describe('WSL', () => {
  const kernel = (release: string) => ({ '/proc/sys/kernel/osrelease': release });

  it('is known by the name of its kernel, or by the device of Windows’ GPUs', () => {
    expect(isWSLKernel(machine(kernel('5.15.153.1-microsoft-standard-WSL2\n')))).toBe(true);
    expect(isWSLKernel(machine({ '/dev/dxg': '', ...kernel('6.6.36-my-own\n') }))).toBe(true);
    expect(isWSLKernel(machine(kernel('4.19.104-Microsoft\n')))).toBe(true);
  });

  it('is no other kernel, also of Azure', () => {
    for (const release of ['6.8.0-45-generic', '6.5.0-1025-azure', '']) {
      expect(isWSLKernel(machine(kernel(release)))).toBe(false);
    }
    expect(isWSLKernel(machine({}))).toBe(false);
  });

  it('is what a simulated machine says, wherever that is simulated', () => {
    vi.stubEnv('GPU_OWNER_SIMULATE', 'wsl');
    expect(isWSL()).toBe(true);
    vi.stubEnv('GPU_OWNER_SIMULATE', '4');
    expect(isWSL()).toBe(false);
  });
});

describe('whichContainer', () => {
  it.each([
    ['Docker', { '/.dockerenv': '' }, {}],
    ['Podman', { '/run/.containerenv': '' }, {}],
    ['Apptainer', {}, { APPTAINER_NAME: 'x.sif' }],
    ['systemd-nspawn', {}, { container: 'systemd-nspawn' }],
    ['Kubernetes', {}, { KUBERNETES_SERVICE_HOST: '10.0.0.1' }],
    ['docker', { '/proc/self/cgroup': '12:pids:/docker/0123abc\n' }, {}],
    ['kubepods', { '/proc/self/cgroup': '0::/kubepods.slice/kubepods-burstable.slice/x\n' }, {}],
    [null, { '/proc/self/cgroup': '0::/system.slice/docker.service\n' }, {}],
    [null, {}, {}],
  ])('is %s with %j and %j', (name, files, env) => {
    expect(whichContainer({ ...machine(files as Record<string, string>), env })).toBe(name);
  });
});

describe('mountPointOf', () => {
  const line = (point: string) =>
    `36 35 98:0 / ${point} rw,noatime master:1 - ext3 /dev/root rw,errors=continue`;
  const table = ['/', '/var', '/var/tmp', '/var/tmp/gpu', '/with\\040space', ''].map(line).join('\n');

  it('is the longest one that holds the path', () => {
    expect(mountPointOf('/var/tmp/gpu-owner', table)).toBe('/var/tmp');
    expect(mountPointOf('/var/tmp/gpu/x', table)).toBe('/var/tmp/gpu');
    expect(mountPointOf('/var/lib', table)).toBe('/var');
    expect(mountPointOf('/home/x', table)).toBe('/');
    expect(mountPointOf('/with space/x', table)).toBe('/with space');
  });

  it('is the root where nothing is known', () => {
    expect(mountPointOf('/var/tmp', '')).toBe('/');
  });
});
