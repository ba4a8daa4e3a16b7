// Compiles lib/ to dist/: the library and the command (CommonJS, with a cache of their compiled form), the command three times,
// as every start pays for the size of what it loads: what claims, without experiments, and all; what loads them (the
// library's is an ES module); and the declarations.
//
// Each bundle is one file, because the number of modules is what start-up time goes into: 25 ES modules cost 19 ms,
// the same bundled into one CommonJS file 5 ms. Modules that lib/cli/main.ts imports dynamically are wrapped in
// functions that run on first use, so that `gpu-owner run` doesn't evaluate what only other subcommands need.
//
// `import.meta.dirname` works everywhere: as it is in ES modules and in tests, as `__dirname` in the CommonJS files.
// lib/native.ts and all outputs lie one directory below the package, so `..` is the package for each of them.
import '../bin/gpu-owner.cjs'; // ends this on a Node.js that is too old
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { writeCodeCaches } from './code-cache.js';

const root = dirname(import.meta.dirname);
const require = createRequire(import.meta.url);
const dist = join(root, 'dist');
const { dependencies, peerDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

const common = {
  absWorkingDir: root,
  bundle: true,
  platform: 'node',
  target: 'node20.19',
  // Dependencies stay dependencies: users update them.
  external: Object.keys({ ...dependencies, ...peerDependencies }),
  logLevel: 'warning',
  // Code that only works in one of the two formats must not get into a release unnoticed.
  logOverride: { 'empty-import-meta': 'error' },
};

const command = {
  format: 'cjs',
  charset: 'ascii', // lib/bundle.ts relies on it
  define: {
    'import.meta.dirname': '__dirname',
    'import.meta.filename': '__filename',
    'import.meta.require': 'require',
  },
};

// Commands that are not in claim.cjs: lib/cli/start.ts doesn't take it for them.
const OTHERS = [
  ...readFileSync(join(root, 'lib/cli/commands.ts'), 'utf8').matchAll(/import\('\.\/([\w-]+)\.ts'\)/g),
]
  .map(([, name]) => name)
  .filter((name) => !['run', 'hold', 'submit'].includes(name))
  .concat('remote', 'jobs-elsewhere')
  .map((name) => `./lib/cli/${name}.ts`);

// Modules that know sweeps.
const SWEEPS = ['./lib/cli/exp.ts'];

// The server of `gpu-owner mcp` has a bundle of its own, which is required: `import()` doesn't work in a bundle. `require` is that of
// bin/ or of dist/.
const agents = {
  name: 'agents',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /\/agents\/index\.ts$/ }, () => ({
      path: '../dist/agents.cjs',
      namespace: 'agents',
    }));
    onResolve({ filter: /./, namespace: 'agents' }, ({ path }) => ({ path, external: true }));
    onLoad({ filter: /./, namespace: 'agents' }, ({ path }) => ({
      contents: `module.exports = require(${JSON.stringify(path)})`,
    }));
  },
};
// The schemas need no messages in 50 languages.
const noLocales = {
  name: 'no-locales',
  setup: ({ onLoad }) =>
    onLoad({ filter: /\/zod\/v4\/locales\/index\.js$/ }, () => ({
      contents: "export { default as en } from './en.js';",
      resolveDir: join(root, 'node_modules/zod/v4/locales'),
    })),
};

const bundle = { ...command, minifySyntax: true, minifyWhitespace: true, plugins: [agents] };

const { build } = await import('esbuild').catch(() => {
  // npm runs `prepare` with `--omit=dev` too.
  const state = existsSync(dist) ? 'stays as it is' : 'is not built: run `npm ci` without `--omit=dev` once';
  console.error(`gpu-owner: without development dependencies dist/ ${state}`);
  process.exit(existsSync(dist) || process.env.npm_lifecycle_event === 'prepare' ? 0 : 1);
});

rmSync(dist, { recursive: true, force: true });
await Promise.all([
  build({ ...common, entryPoints: ['lib/library.ts'], outfile: 'dist/index.js', format: 'esm' }),
  // Not minified: an error that isn't caught is shown with the line that threw it.
  build({ ...common, ...command, entryPoints: ['lib/index.ts'], outfile: 'dist/library.cjs' }),
  build({
    ...common,
    ...bundle,
    entryPoints: ['lib/cli/main.ts'],
    outfile: 'dist/claim.cjs',
    minifyIdentifiers: true, // a millisecond of each start
    external: [...common.external, ...OTHERS],
  }),
  build({
    ...common,
    ...bundle,
    entryPoints: ['lib/cli/main.ts'],
    outfile: 'dist/command.cjs',
    // lib/cli/start.ts doesn't take this one for them.
    external: [...common.external, ...SWEEPS],
  }),
  build({
    ...common,
    ...bundle,
    entryPoints: ['lib/agents/index.ts'],
    outfile: 'dist/agents.cjs',
    minifyIdentifiers: true,
    plugins: [noLocales],
    metafile: true,
  }).then(({ metafile }) => writeLicences('agents.licenses.txt', Object.keys(metafile.inputs))),
  build({
    ...common,
    ...bundle,
    entryPoints: ['lib/cli/main.ts'],
    outfile: 'dist/experiments.cjs',
    metafile: true,
  }).then(({ metafile }) => writeLicences('experiments.licenses.txt', Object.keys(metafile.inputs))),
  build({
    ...common,
    ...bundle,
    entryPoints: ['yaml'],
    outfile: 'dist/yaml.cjs',
    minifyIdentifiers: true,
    metafile: true,
  }).then(({ metafile }) => writeLicences('yaml.licenses.txt', Object.keys(metafile.inputs))),
  build({ ...common, ...command, entryPoints: ['lib/cli/start.ts'], outfile: 'dist/gpu-owner.cjs' }),
  buildPage(),
]);

/** The page of `gpu-owner web`: what browsers of the last two years understand. */
async function buildPage() {
  const { metafile } = await build({
    absWorkingDir: root,
    bundle: true,
    minify: true,
    target: ['chrome123', 'firefox125', 'safari17.5'],
    entryPoints: ['web/page.tsx', 'web/page.css'],
    outdir: 'dist/web',
    tsconfig: 'web/tsconfig.json',
    logLevel: 'warning',
    metafile: true,
  });
  writeLicences('web/licenses.txt', Object.keys(metafile.inputs));
  for (const name of ['index.html', 'icon.svg'])
    copyFileSync(join(root, 'web', name), join(dist, 'web', name));
}

/** Packages that are ES modules only can't stay outside of the command; what is bundled comes with its licence. */
function writeLicences(name, inputs) {
  const packages = new Set(inputs.map((path) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0]));
  packages.delete(undefined);
  const texts = [...packages].sort().map((path) => {
    const file = readdirSync(join(root, path)).find((name) => /^licen[cs]e/i.test(name));
    if (file === undefined) throw new Error(`${path} has no licence`);
    return `${path.replace(/^.*node_modules\//, '')}\n\n${readFileSync(join(root, path, file), 'utf8').trim()}\n`;
  });
  writeFileSync(join(dist, name), texts.join(`\n${'-'.repeat(72)}\n\n`));
}

for (const name of ['library.cjs', 'claim.cjs', 'command.cjs', 'experiments.cjs', 'yaml.cjs']) {
  const source = readFileSync(join(dist, name), 'latin1');
  if (/[^\0-\x7f]/.test(source))
    throw new Error(
      `dist/${name} is not ASCII: write such a character as an escape (esbuild leaves regular expressions alone)`,
    );
  // By this lib/bundle.ts knows which compiled form belongs to it.
  appendFileSync(join(dist, name), `//${createHash('sha256').update(source).digest('hex')}`);
}

const tsc = join(dirname(require.resolve('typescript/package.json')), 'bin/tsc');
const { status } = spawnSync(process.execPath, [tsc, '-p', 'tsconfig.build.json'], {
  cwd: root,
  stdio: 'inherit',
});
process.exitCode = status ?? 1;

// The compiler leaves imports in declarations as they are written; users' compilers understand './x.js' best.
for (const path of readdirSync(dist, { recursive: true }).filter((name) => name.endsWith('.d.ts'))) {
  const text = readFileSync(join(dist, path), 'utf8');
  writeFileSync(
    join(dist, path),
    text
      .replace(/(from |import\()(['"])(\.{1,2}\/[^'"]+)\.ts\2/g, '$1$2$3.js$2')
      // Users don't have the declarations of what is bundled, and the library shows nothing of it.
      .replace("import type * as YAML from 'yaml';", 'declare const YAML: unknown;'),
  );
}

const addon = join(root, 'build/Release/gpu_owner.node');
if (existsSync(addon) && process.platform === 'linux') {
  for (const problem of await writeCodeCaches(addon)) console.error(`gpu-owner: ${problem}`);
}
