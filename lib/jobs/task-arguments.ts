import { label } from '../gpus/index.ts';
import { INHERITED, markOptions, parseInherited } from './keeper.ts';
import type { Supervising } from './supervised-process.ts';

const MOST_TITLE = 300; // characters

/** What makes this process's environment another one. Of the rest, every byte stays: strings can't carry all. */
export function changesTo(env: NodeJS.ProcessEnv): string[] {
  const names = new Set([...Object.keys(process.env), ...Object.keys(env)]);
  return [...names].flatMap((name) => {
    const value = env[name];
    if (value === process.env[name]) return [];
    return [value === undefined ? name : `${name}=${value}`];
  });
}

/** What the keeper of a task is given: descriptors, and its arguments once their numbers in it are known. */
export function describe({ words, directory, claim, descriptors: others, title, grace }: Supervising) {
  const { leases, marks, jobFile, gpus } = claim;
  const descriptors: number[] = [];
  // The socket comes first.
  const place = (descriptor: number) => descriptors.push(descriptor);
  const own = leases.map(({ descriptor }) => place(descriptor));
  const shared = leases.map(({ parentDescriptor }) => parentDescriptor).filter((each) => each !== null);
  const parents = shared.map(place);
  const inherited = [...others, ...(jobFile === null ? [] : [jobFile.descriptor])].map(place);
  const marked = markOptions(jobFile === null ? marks : [...marks, jobFile], place);
  const { pid: _, ...record } = leases[0]?.record ?? {};
  const ways = parseInherited(process.env[INHERITED]);
  const args = (first: number) => {
    const at = (places: readonly number[]) => places.map((each) => first + each).join(',');
    return [
      '--control',
      String(first),
      '--leases',
      at(own),
      ...(parents.length === 0 ? [] : ['--shared', at(parents)]),
      ...(inherited.length === 0 ? [] : ['--inherited', at(inherited)]),
      ...marked(first),
      ...leases.flatMap(({ paths }) => ['--lease-file', paths.own]),
      ...leases.flatMap(({ paths: { parent } }) => (parent === null ? [] : ['--lease-file', parent])),
      '--record',
      JSON.stringify({ ...record, command: title.slice(0, MOST_TITLE) }),
      '--gpus',
      `GPU ${gpus.map(label).join(', ')}`,
      '--grace',
      String(grace),
      '--directory',
      directory,
      ...(ways.sigign ? ['--ignore-signals', ways.sigign] : []),
      ...(ways.nofile ? ['--nofile', ways.nofile] : []),
      '--',
      ...words,
    ];
  };
  return { descriptors, args };
}
