import { label } from '../gpus/instances.ts';
import { INHERITED, parseInherited } from './keeper.ts';
import type { Supervising } from './supervised.ts';

const MOST_TITLE = 300; // characters

/** An environment as programs are given it. */
export function variables(env: NodeJS.ProcessEnv): string[] {
  return Object.entries(env).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${value}`]));
}

/** What the keeper of a task is given: descriptors, and its arguments once their numbers in it are known. */
export function describe({ words, directory, claim, descriptors: shared, title, grace }: Supervising) {
  const { leases, marks, gpus } = claim;
  const descriptors: number[] = [];
  // The socket comes first.
  const place = (descriptor: number) => descriptors.push(descriptor);
  const own = leases.map(({ descriptor }) => place(descriptor));
  const others = [
    ...leases.map(({ parentDescriptor }) => parentDescriptor).filter((each) => each !== null),
    ...shared,
  ].map(place);
  const marked = marks.map((mark) => ({ ...mark, place: place(mark.descriptor) }));
  const { pid: _, ...record } = leases[0]?.record ?? {};
  const inherited = parseInherited(process.env[INHERITED]);
  const args = (first: number) => {
    const at = (places: readonly number[]) => places.map((each) => first + each).join(',');
    return [
      '--control',
      String(first),
      '--leases',
      at(own),
      ...(others.length === 0 ? [] : ['--shared', at(others)]),
      ...marked.flatMap(({ kind, token, path, place: each }) =>
        kind === 'lock'
          ? ['--held', at([each])]
          : [kind === 'pid' ? '--pid-marker' : '--marker', `${at([each])}:${token}:${path}`],
      ),
      '--record',
      JSON.stringify({ ...record, command: title.slice(0, MOST_TITLE) }),
      '--gpus',
      `GPU ${gpus.map(label).join(', ')}`,
      '--grace',
      String(grace),
      '--directory',
      directory,
      ...(inherited.sigign ? ['--ignore-signals', inherited.sigign] : []),
      ...(inherited.nofile ? ['--nofile', inherited.nofile] : []),
      '--',
      ...words,
    ];
  };
  return { descriptors, args };
}
