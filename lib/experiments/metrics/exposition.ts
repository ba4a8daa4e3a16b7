/** A number with what tells it from others of its name. */
export interface Sample {
  /** Of a histogram: `_bucket`, `_sum`, `_count`. */
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

/** The text format that Prometheus reads, version 0.0.4. */
export function exposition(families: readonly Family[]): string {
  return families
    .map(({ name, type, help, samples }) => {
      const lines = samples.map(
        ({ suffix = '', labels, value }) => `${name}${suffix}${formatLabels(labels)} ${formatValue(value)}\n`,
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

function formatValue(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  return Number.isFinite(value) ? String(value) : value > 0 ? '+Inf' : '-Inf';
}
