import { readdirSync, readFileSync } from 'node:fs';
import { join, normalize } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './machine.ts';

/** From the top: nobody imports from a room above, nor from one beside. */
const FLOORS = [['cli'], ['doctor', 'experiments'], ['jobs'], ['claims'], ['conventions'], ['gpus']];
const lib = join(root, 'lib');

function floorOf(path: string): number {
  return FLOORS.findIndex((rooms) => rooms.includes(path.split('/')[0] as string));
}

test('imports run one way', () => {
  const files = readdirSync(lib, { recursive: true, encoding: 'utf8' }).filter((path) =>
    path.endsWith('.ts'),
  );
  const wrong = files.flatMap((path) => {
    const text = readFileSync(join(lib, path), 'utf8');
    return [...text.matchAll(/\b(?:from|import)\(?\s*'(\.[^']+)'/g)].flatMap(([, target]) => {
      const imported = normalize(join(path, '..', target as string));
      const [from, to] = [floorOf(path), floorOf(imported)];
      const isBeside = from !== -1 && from === to && path.split('/')[0] !== imported.split('/')[0];
      const isAbove = to !== -1 && to < from; // files directly in lib/ are on no floor
      return isAbove || isBeside ? [`${path} imports ${imported}`] : [];
    });
  });
  expect(files.length).toBeGreaterThan(100);
  expect(wrong).toEqual([]);
});
