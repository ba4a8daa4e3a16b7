// Sweeps that compare their tasks: a dot for each that has ended, and the curve of the best value.
import type { Sweep } from '../lib/views/web/answers.ts';

/** How long an answer is good for. */
export const sweepsIntervalMs = () => 5_000;
const WIDTH = 1_000;
const HEIGHT = 100;
/** The room for dots at the edges. */
const EDGE = 4;
/** Worse values are drawn at the edge: a single one that has diverged would press all others into a line. */
const SHOWN_SHARE = 0.9;

export function SweepCharts({ sweeps }: { sweeps: readonly Sweep[] }) {
  return (
    <ul class="cards">
      {sweeps.map((sweep) => (
        <li key={sweep.job} class="card leased sweep">
          <h3>
            Job {sweep.job} {sweep.name} <span class="state">{sweep.state}</span>
          </h3>
          <Curve sweep={sweep} />
        </li>
      ))}
    </ul>
  );
}

export function SweepLegend() {
  return (
    <p class="legend">
      <span class="trials">a task</span>
      <span class="stopped">stopped early</span>
      <span class="best">the best so far</span>
    </p>
  );
}

function Curve({ sweep }: { sweep: Sweep }) {
  const { metric, goal, count, best, points, records } = sweep;
  if (best === null) return <p class="empty">No task has ended with a value of {metric}.</p>;
  const sign = goal === 'minimize' ? 1 : -1;
  const sorted = points.map(({ value }) => value).sort((a, b) => sign * (a - b));
  const top = records.at(-1)?.value ?? 0;
  const worst = sorted[Math.max(1, Math.ceil(sorted.length * SHOWN_SHARE)) - 1] ?? top;
  const x = (trial: number) => place((trial - 1) / Math.max(1, count - 1), WIDTH);
  // Better values of both goals are where a person expects them: small ones below, large ones above.
  const y = (value: number) => {
    const share = worst === top ? 0 : Math.min(1, (value - top) / (worst - top));
    return place(goal === 'minimize' ? 1 - share : share, HEIGHT);
  };
  const dots = (isStopped: boolean) =>
    points
      .filter(({ stopped }) => stopped === isStopped)
      .map(({ trial, value }) => `M${x(trial)} ${y(value)}h0`)
      .join('');
  const [first, ...rest] = records.map(({ trial, value }) => `${x(trial)} ${y(value)}`);
  const steps = rest.map((each) => `H${each.replace(' ', 'V')}`).join('');
  const text = `${goal === 'minimize' ? 'smallest' : 'largest'} ${best}`;
  return (
    <figure class="chart">
      <svg
        role="img"
        aria-label={`${metric} of ${count} tasks, ${text}`}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        <path class="trials" d={dots(false)} />
        <path class="stopped" d={dots(true)} />
        <path class="best" d={`M${first}${steps}H${x(count)}`} />
      </svg>
      <figcaption>
        {count === points.length ? count : `${points.length} of ${count}`} tasks from{' '}
        {short(Math.min(top, worst))} to {short(Math.max(top, worst))}
        {sorted.at(-1) === worst ? '' : ', worse ones at the edge'}; {text}
      </figcaption>
    </figure>
  );
}

const place = (share: number, length: number) =>
  ((EDGE * length) / 100 + share * length * (1 - EDGE / 50)).toFixed(1);
const short = (value: number) => String(Number(value.toPrecision(4)));
