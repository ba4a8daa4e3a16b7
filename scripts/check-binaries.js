// Checks what the native binaries ask of a machine and what they show to other libraries:
//   - nothing newer than what Node.js's own binaries need: glibc 2.28 and libstdc++ of GCC 5, so that a binary that was
//     built on a new system starts on an old one (native/compat/);
//   - exported symbols: the addon's two entry points, the simulated libraries' API, nothing else, so that nothing here
//     can take the place of a symbol that another library in the process looks for.
//
// Usage: node scripts/check-binaries.js [--prebuilt] [DIRECTORY...]     default: build/Release
// --prebuilt: also that they are stripped and load libdl and libpthread, which were separate before glibc 2.34.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { parseArgs } from 'node:util';

const root = dirname(import.meta.dirname);
const FLOOR = { GLIBC: '2.28', GLIBCXX: '3.4.21', CXXABI: '1.3.9', GCC: '4.3.0' };

const EXPORTS = {
  'gpu-owner-keeper': /^$/,
  'gpu-owner-placeholder': /^$/,
  'gpu-owner-simulator': /^$/,
  'simulator/libnvidia-ml.so.1': /^nvml[A-Z]\w*$/,
  'simulator/libcuda.so.1': /^cu[A-Z]\w*$/,
  'simulator/bin/nvidia-smi': /^$/,
};
const ADDON_EXPORTS = /^(napi_register_module_v1|node_api_module_get_api_version_v1)$/;

/** Is version a newer than b? Both like "2.28". */
function isNewer(a, b) {
  const left = a.split('.').map(Number);
  const right = b.split('.').map(Number);
  for (let i = 0; i < Math.max(left.length, right.length); i++) {
    const difference = (left[i] ?? 0) - (right[i] ?? 0);
    if (difference !== 0) return difference > 0;
  }
  return false;
}

function readelf(option, path) {
  return execFileSync('readelf', ['-W', option, path], {
    encoding: 'utf8',
    env: { ...process.env, LC_ALL: 'C' },
  });
}

/** The dynamic symbols: name, version (as needed or, for exports, '') and whether the binary defines it. */
function dynamicSymbols(path) {
  const symbols = [];
  for (const line of readelf('--dyn-syms', path).split('\n')) {
    const fields = /^\s*\d+:\s+\S+\s+\S+\s+\S+\s+(\S+)\s+\S+\s+(\S+)\s+([^\s@]+)(?:@+(\S+))?/.exec(line);
    if (fields === null || fields[1] === 'LOCAL') continue;
    symbols.push({ name: fields[3], version: fields[4] ?? '', defined: fields[2] !== 'UND' });
  }
  return symbols;
}

function check(path, allowed, prebuilt) {
  const problems = [];
  let exported = 0;
  for (const { name, version, defined } of dynamicSymbols(path)) {
    // A variable of libc that was copied into an executable has a version; what the binary itself exports has none.
    if (defined && version === '') {
      if (allowed.test(name)) exported++;
      else problems.push(`exports ${name}`);
    }
    const [, library, number] = /^([A-Z]+)_([\d.]+)$/.exec(version) ?? [];
    if (version !== '' && (library === undefined || FLOOR[library] === undefined)) {
      problems.push(`needs ${name}@${version}, which is no public version`);
    } else if (version !== '' && isNewer(number, FLOOR[library])) {
      problems.push(`needs ${name}@${version}, newer than ${library}_${FLOOR[library]}`);
    }
  }
  if (exported === 0 && !allowed.test('')) problems.push('exports nothing');
  const dynamic = readelf('--dynamic', path);
  if (/R(UN)?PATH/.test(dynamic)) problems.push('has a search path for libraries');
  if (prebuilt) {
    for (const library of ['libdl.so.2', 'libpthread.so.0']) {
      if (!dynamic.includes(`[${library}]`)) problems.push(`doesn't load ${library}`);
    }
    if (readelf('--sections', path).includes('.symtab')) problems.push('is not stripped');
  }
  return problems;
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { prebuilt: { type: 'boolean' } },
});
const directories = positionals.length > 0 ? positionals : [join(root, 'build/Release')];
let failed = 0;
let passed = 0;
for (const directory of directories) {
  const addons = existsSync(directory)
    ? readdirSync(directory).filter((name) => /^gpu[-_]owner.*\.node$/.test(name))
    : [];
  const expected = { ...Object.fromEntries(addons.map((name) => [name, ADDON_EXPORTS])), ...EXPORTS };
  if (addons.length === 0) expected['gpu_owner.node'] = ADDON_EXPORTS;
  for (const [name, allowed] of Object.entries(expected)) {
    const path = join(directory, name);
    const problems = existsSync(path) ? check(path, allowed, values.prebuilt) : ['is missing'];
    for (const problem of problems) console.error(`${relative(process.cwd(), path)}: ${problem}`);
    if (problems.length > 0) failed++;
    else passed++;
  }
}
console.log(`binaries: ${passed} as they should be, ${failed} not`);
process.exitCode = failed > 0 ? 1 : 0;
