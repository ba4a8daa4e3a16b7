import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { describe, expect, test } from 'vitest';
import { root } from './support/machine.ts';

/** The rooms of lib/ from the top: a room imports only from rooms below. Rooms on one floor don't know each other. */
const FLOORS = [
  ['cli'],
  ['agents'],
  ['check', 'sweeps', 'views'],
  ['enforce'],
  ['fleet'],
  ['jobs'],
  ['status'],
  ['claims'],
  ['conventions', 'usage'],
  ['gpus'],
  ['config', 'prometheus', 'shapes'],
  ['platform'],
];
/** The rooms inside of rooms, in the same order. Each has an entry of its own; the room's loose files stand above them. */
const INNER_FLOORS: Readonly<Record<string, readonly (readonly string[])[]>> = {
  claims: [['queue'], ['locks'], ['rules']],
  sweeps: [
    ['control'],
    ['protocol'],
    ['manager'],
    ['plan', 'worker'],
    ['tables'],
    ['search'],
    ['files', 'progress'],
    ['queue'],
    ['project', 'task'],
  ],
};

const lib = join(root, 'lib');
const files = readdirSync(lib, { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.ts'));
const imports = new Map(
  files.map((path) => {
    const text = readFileSync(join(lib, path), 'utf8');
    const targets = [...text.matchAll(/\b(?:from|import)\s*\(?\s*'(\.[^']+)'/g)].map(([, target]) =>
      normalize(join(path, '..', target as string)),
    );
    return [path, [...new Set(targets)]];
  }),
);
/** All rooms inside of rooms. */
const INNER = files.filter((path) => /\/.*\/index\.ts$/.test(path)).map((path) => dirname(path));
/** Inside of lib/: the simulator's scenarios are beside it. */
const edges = [...imports].flatMap(([from, targets]) =>
  targets.filter((to) => !to.startsWith('../simulator/')).map((to) => ({ from, to })),
);

function floorOf(path: string): number {
  return FLOORS.findIndex((rooms) => rooms.includes(path.split('/')[0] as string));
}

function innerFloorOf(path: string): number {
  const [room, inner] = dirname(path).split('/');
  return (INNER_FLOORS[room as string] ?? []).findIndex((rooms) => rooms.includes(inner as string));
}

/** The rooms that a file is in, from the outermost: those with an entry. */
function roomsOf(path: string): string[] {
  const directories = path.split('/').slice(0, -1);
  const paths = directories.map((_, index) => directories.slice(0, index + 1).join('/'));
  return paths.filter((each, index) => index === 0 || INNER.includes(each));
}

test('every file is in a room or is a public entry', () => {
  expect(files.length).toBeGreaterThan(100);
  const loose = files.filter((path) => floorOf(path) === -1);
  expect(loose.sort()).toEqual(['bundle.ts', 'errors.ts', 'index.ts', 'library.ts', 'native.ts']);
});

test('imports run one way', () => {
  const wrong = edges.filter(({ from, to }) => {
    const [above, below] = [floorOf(from), floorOf(to)];
    if (above === -1) return from === 'native.ts' && below !== -1;
    const isBeside = above === below && from.split('/')[0] !== to.split('/')[0];
    return isBeside || (below !== -1 && below < above) || to === 'index.ts';
  });
  expect(wrong).toEqual([]);
});

test.each(Object.keys(INNER_FLOORS))('imports run one way inside of %s, too', (room) => {
  const isInside = (path: string) => path.startsWith(`${room}/`);
  const wrong = edges.filter(({ from, to }) => {
    if (!isInside(from) || !isInside(to)) return false;
    const [above, below] = [innerFloorOf(from), innerFloorOf(to)];
    const isBeside = above !== -1 && above === below && roomsOf(from)[1] !== roomsOf(to)[1];
    return isBeside || below < above;
  });
  expect(wrong).toEqual([]);
  const inner = files.filter((path) => isInside(path) && path.split('/').length > 2);
  expect(inner.filter((path) => innerFloorOf(path) === -1)).toEqual([]);
});

test('a room is entered by its index.ts', () => {
  const wrong = edges.filter(({ from, to }) => {
    const entered = roomsOf(to).find((room) => !roomsOf(from).includes(room));
    return entered !== undefined && to !== `${entered}/index.ts`;
  });
  expect(wrong.filter(({ from }) => from !== 'library.ts')).toEqual([]);
});

test('no imports go in a circle', () => {
  expect(findCircles(imports)).toEqual([]);
});

/** The strongly connected sets of more than one file (Tarjan's algorithm). */
function findCircles(graph: ReadonlyMap<string, readonly string[]>): string[][] {
  const order = new Map<string, number>();
  const open: string[] = [];
  const circles: string[][] = [];
  const visit = (file: string): number => {
    order.set(file, order.size);
    let low = order.get(file) as number;
    open.push(file);
    for (const target of graph.get(file) ?? []) {
      if (!order.has(target)) low = Math.min(low, visit(target));
      else if (open.includes(target)) low = Math.min(low, order.get(target) as number);
    }
    if (low === order.get(file)) {
      const circle = open.splice(open.indexOf(file));
      if (circle.length > 1) circles.push(circle);
    }
    return low;
  };
  for (const file of graph.keys()) if (!order.has(file)) visit(file);
  return circles;
}

test('a bundle can load what is imported dynamically', () => {
  // The command runs in a vm.Script, in which import() of what isn't bundled fails: process.getBuiltinModule() takes its place.
  const wrong = files.filter((path) => /\bimport\(\s*['"]node:/.test(readFileSync(join(lib, path), 'utf8')));
  expect(wrong).toEqual([]);
});

test('an import names a file that exists', () => {
  const missing = edges.filter(({ to }) => !imports.has(to) && dirname(to) !== '..');
  expect(missing).toEqual([]);
});

describe('native', () => {
  /** The rooms of native/ and simulator/ from the top, as FLOORS. */
  const NATIVE_FLOORS = [
    ['addon.cc'],
    ['bindings', 'keeper', 'placeholder', 'simulator'],
    ['cuda', 'nvml', 'waiter'],
    ['dl', 'locks'],
    ['process'],
    ['compat'],
  ];
  const within = (directory: string) => readdirSync(directory, { recursive: true, encoding: 'utf8' });
  const sources = [
    ...within(join(root, 'native')),
    ...within(join(root, 'simulator')).map((path) => join('simulator', path)),
  ].filter((path) => /\.(cc|h)$/.test(path) && !path.startsWith('tests/'));
  const includes = new Map(
    sources.map((path) => {
      const text = readFileSync(join(root, path.startsWith('simulator/') ? '' : 'native', path), 'utf8');
      return [path, [...text.matchAll(/^#include "([^"]+)"/gm)].map(([, target]) => target as string)];
    }),
  );
  const nativeFloorOf = (path: string) =>
    NATIVE_FLOORS.findIndex((rooms) => rooms.includes(path.split('/')[0] as string));

  test('every source is in a room', () => {
    expect(sources.length).toBeGreaterThan(80);
    expect(sources.filter((path) => nativeFloorOf(path) === -1)).toEqual([]);
  });

  test('includes run one way, and name a file that is there', () => {
    const wrong = [...includes].flatMap(([from, targets]) =>
      targets.filter((to) => {
        const [above, below] = [nativeFloorOf(from), nativeFloorOf(to)];
        const isBeside = above === below && from.split('/')[0] !== to.split('/')[0];
        return !includes.has(to) || isBeside || below < above;
      }),
    );
    expect(wrong).toEqual([]);
  });

  test('no includes go in a circle', () => {
    expect(findCircles(includes)).toEqual([]);
  });
});
