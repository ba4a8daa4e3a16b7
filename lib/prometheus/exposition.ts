// The text format of Prometheus, version 0.0.4.

/** A number, and the labels that tell it from others of its name. */
export interface Sample {
  /** `_bucket`, `_sum` or `_count` of a histogram. */
  suffix?: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

/** Samples of one name. */
export interface Family {
  /** Without the suffixes of samples. */
  name: string;
  type: 'gauge' | 'counter' | 'histogram';
  help: string;
  samples: readonly Sample[];
}

export const CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Formats families as text for Prometheus, version 0.0.4 of the format. */
export function exposition(families: readonly Family[]): string {
  return families
    .map(({ name, type, help, samples }) => {
      const lines = samples.map(
        ({ suffix = '', labels, value }) =>
          `${name}${suffix}${formatLabels(labels)} ${formatNumber(value)}\n`,
      );
      const explained = help.replace(/\\/g, '\\\\').replace(/\n/g, '\\n');
      return `# HELP ${name} ${explained}\n# TYPE ${name} ${type}\n${lines.join('')}`;
    })
    .join('');
}

function formatLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([key, value]) => {
    const escaped = value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n');
    return `${key}="${escaped}"`;
  });
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function formatNumber(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  return Number.isFinite(value) ? String(value) : value > 0 ? '+Inf' : '-Inf';
}
