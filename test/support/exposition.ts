// Reads the text format of Prometheus strictly: what it can't read, Prometheus may refuse, and with it all of a scrape.

export interface ReadSample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const NAME = '[a-zA-Z_:][a-zA-Z0-9_:]*';
const LABEL = String.raw`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"`;
const SAMPLE = new RegExp(String.raw`^(${NAME})(?:\{(${LABEL}(?:,${LABEL})*)\})? (-?[0-9][0-9.e+-]*)$`);

/** The samples of a text. @throws if a line is malformed, a sample is there twice, or a family lacks its type */
export function readExposition(text: string): ReadSample[] {
  if (!text.endsWith('\n')) throw new Error(`the text is cut off: ${text.slice(-80)}`);
  const types = new Set<string>();
  const seen = new Set<string>();
  return text
    .slice(0, -1)
    .split('\n')
    .flatMap((line) => {
      const type = new RegExp(`^# TYPE (${NAME}) gauge$`).exec(line)?.[1];
      if (type !== undefined) types.add(type);
      if (type !== undefined || new RegExp(`^# HELP ${NAME} .+$`).test(line)) return [];
      const [, name = '', labels = '', ...rest] = SAMPLE.exec(line) ?? [];
      const key = `${name}{${labels}}`;
      if (name === '' || !types.has(name) || seen.has(key)) throw new Error(`not as it should be: ${line}`);
      seen.add(key);
      const pairs = [...labels.matchAll(new RegExp(LABEL, 'g'))].map(([, label, value]) => [label, value]);
      return [{ name, labels: Object.fromEntries(pairs), value: Number(rest.at(-1)) }];
    });
}

/** The values of one name, by the labels that are asked for, joined by spaces; a label that is missing is '-'. */
export function valuesOf(
  samples: readonly ReadSample[],
  name: string,
  ...by: string[]
): Record<string, number> {
  const found = samples.filter((each) => each.name === `gpu_owner_${name}`);
  return Object.fromEntries(
    found.map(({ labels, value }) => [by.map((label) => labels[label] ?? '-').join(' '), value]),
  );
}
