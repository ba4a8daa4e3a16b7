/** A configuration file as text: keys at the left margin, and patterns anywhere. */
interface Text {
  /** Whether all of these keys are at the left margin. */
  has(...names: string[]): boolean;
  matches(pattern: RegExp): boolean;
}

const OWN = 'sweeps#files-of-other-tools';

/** Tools whose files people try: what the file is, the part of a page that helps, and by what it is recognised. */
const TOOLS: readonly [what: string, page: string, isIts: (text: Text) => boolean][] = [
  [
    'an experiment of Katib',
    OWN,
    ({ matches }) =>
      matches(/^apiVersion:\s*["']?kubeflow\.org\//m) && matches(/^kind:\s*["']?Experiment\b/m),
  ],
  [
    'a file of Polyaxon',
    OWN,
    ({ has, matches }) =>
      has('hptuning') ||
      (has('version') &&
        (has('matrix') || matches(/^kind:\s*["']?(operation|component|job|group|experiment)\b/m))),
  ],
  ['an experiment of SEML', OWN, ({ has }) => has('seml')],
  [
    'an experiment of Determined',
    OWN,
    ({ has }) => has('searcher') && (has('hyperparameters') || has('entrypoint') || has('name')),
  ],
  [
    'a file of Ray',
    'recipes#ray',
    ({ has, matches }) =>
      has('cluster_name') ||
      matches(/\bgrid_search\s*:/) ||
      (matches(/^\s+run:\s/m) && matches(/^\s+(?:env|stop|config):/m)),
  ],
  ['a pipeline of DVC', OWN, ({ has, matches }) => has('stages') && matches(/^\s+(?:-\s+)?cmd:/m)],
  [
    'a configuration of Hydra',
    'search#command-lines-of-hydra',
    ({ has, matches }) =>
      has('hydra') ||
      matches(/^defaults:\s*(?:#.*)?\n(?:\s*(?:#.*)?\n)*\s*- /m) ||
      matches(/^# *@package\b/m),
  ],
];

/** Says what a file is that another tool reads, and which page helps; null: it may be meant as a sweep file. */
export function describeForeign(text: string): string | null {
  if (/^\s*["']?combin\w*["']?\s*:/m.test(text)) return null;
  const keys = new Set(
    Array.from(text.matchAll(/^(["']?)([\w.-]+)\1\s*:(?=\s|$)/gm), ([, , key]) => key as string),
  );
  const file: Text = {
    has: (...names) => names.every((name) => keys.has(name)),
    matches: (pattern) => pattern.test(text),
  };
  const found = TOOLS.find(([, , isIts]) => isIts(file));
  return found === undefined
    ? null
    : `it is ${found[0]}, not a sweep file of gpu-owner; see \`gpu-owner docs ${found[1]}\``;
}
