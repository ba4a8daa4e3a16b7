// NVIDIA's own user-space libraries, without a driver below them: their names, and what every command says then.
import { execFileSync, spawnSync } from 'node:child_process';
import { chownSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { command, NOBODY, root, whyNotNobody } from '../support/machine.ts';

const SUITES = { bookworm: '535', trixie: '550' };
/** In no version so far; `nvmlDeviceGetTemperature` takes its place. */
const LATER = ['nvmlDeviceGetTemperatureV'];
/** Over `node -e 0`, which takes 25 ms on a machine that has nothing else to do; elsewhere, in proportion. A wait would be longer. */
const MAX_OVER_NODE_MS = 500;
const MAX_OF_NODE = 12;

const directory = mkdtempSync(join(tmpdir(), 'nvidia-libraries-'));
const project = join(directory, 'project');
mkdirSync(project);
// As root, NVIDIA's library would make /dev/nvidiactl on this machine.
const isRoot = process.getuid?.() === 0;
const user = isRoot ? { uid: NOBODY, gid: NOBODY } : {};
if (isRoot) for (const path of [directory, project]) chownSync(path, NOBODY, NOBODY);
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** The directory of the libraries, or why they can't be had. */
function unpack(suite: string): { path: string; missing: string | null } {
  if (process.arch !== 'x64') return { path: '', missing: 'only on x64' };
  if (existsSync('/dev/nvidiactl')) return { path: '', missing: 'this machine has a driver' };
  const script = join(import.meta.dirname, 'fixtures/nvidia_libraries.sh');
  const own = join(directory, suite);
  const { status, stderr } = spawnSync(script, [suite, own], { encoding: 'utf8', timeout: 120_000 });
  const path = join(own, 'packages/usr/lib/x86_64-linux-gnu/nvidia/current');
  const reason = status === 0 ? null : (stderr.trim().split('\n').at(-1) ?? '');
  return { path, missing: reason ?? (isRoot ? whyNotNobody() : null) };
}

function namesIn(library: string): string[] {
  const text = execFileSync('readelf', ['-W', '--dyn-syms', library], { encoding: 'utf8' });
  return [...text.matchAll(/ (\w+)(?:@@?\S+)?$/gm)].map(([, name]) => name as string);
}

function namesLookedUp(source: string, prefix: string): string[] {
  const text = readFileSync(join(root, 'native', source), 'utf8');
  return [...text.matchAll(new RegExp(`"(${prefix}[A-Z]\\w*)"`, 'g'))].map(([, name]) => name as string);
}

function limit(node: number): number {
  return Math.max(node + MAX_OVER_NODE_MS, MAX_OF_NODE * node);
}

describe.each(Object.entries(SUITES))('the libraries of %s', (suite, version) => {
  const { path, missing } = unpack(suite);
  const env = {
    ...process.env,
    GPU_OWNER_SIMULATE: undefined,
    GPU_OWNER_NVML_LIBRARY: join(path, 'libnvidia-ml.so.1'),
    GPU_OWNER_CUDA_LIBRARY: join(path, 'libcuda.so.1'),
    GPU_OWNER_LOCK_DIR: join(project, 'locks'),
  };
  const run = (words: string[]) =>
    spawnSync(process.execPath, words, {
      cwd: project,
      env,
      ...user,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });

  describe.skipIf(missing !== null)(`version ${version}${missing === null ? '' : `: ${missing}`}`, () => {
    test.each([
      ['nvml/library.cc', 'nvml', 'libnvidia-ml.so.1', 30],
      ['cuda/library.cc', 'cu', 'libcuda.so.1', 10],
    ])('%s looks up names that exist', (source, prefix, library, count) => {
      const wanted = namesLookedUp(source, prefix);
      expect(wanted.length).toBeGreaterThan(count);
      const there = new Set(namesIn(join(path, library)));
      expect(wanted.filter((name) => !there.has(name) && !LATER.includes(name))).toEqual([]);
    });

    test.each([
      [['status']],
      [['find']],
      [['hold']],
      [['selftest']],
      [['run', '--', 'true']],
      [['exp', 'run', '--grid', 'a=1', '--', 'true']],
    ])('%j says at once that the driver is not loaded, with the remedy', (words) => {
      let [ours, node] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
      // The best of five in turn: others use this machine, too.
      for (let round = 0; round < 5; round++) {
        const start = performance.now();
        const { status, stderr } = run([command, ...words]);
        const middle = performance.now();
        expect({ status, stderr }).toEqual({
          status: 69,
          stderr: expect.stringMatching(
            /^gpu-owner: the NVIDIA driver doesn't start: the NVIDIA driver is not loaded \(NVML code 9\)\..*(modprobe nvidia|--gpus all)/,
          ),
        });
        run(['-e', '0']);
        ours = Math.min(ours, middle - start);
        node = Math.min(node, performance.now() - middle);
        if (ours < limit(node)) break;
      }
      expect(ours).toBeLessThan(limit(node));
      if (isRoot) expect(existsSync('/dev/nvidiactl')).toBe(false);
    });

    test('doctor names the driver as the only problem', () => {
      const { status, stdout } = run([command, 'doctor', '--json']);
      expect(status).toBe(1);
      const findings = JSON.parse(stdout) as { id: string; level: string }[];
      expect(findings.filter(({ level }) => level === 'problem').map(({ id }) => id)).toEqual(['ERR_DRIVER']);
    });
  });
});
