// A sweep that compares its tasks: a dot for each that has ended, with its parameters, and the line of the best value.
import type { Sweep } from '../lib/views/web/shapes.ts';

/** How long an answer is good for. */
export const sweepsIntervalMs = () => 5_000;
/** The room for dots at the edges, in percent. */
const EDGE = 5;
/** Worse values are drawn at the edge: a single one that has diverged would press all others into a line. */
const SHOWN_SHARE = 0.9;

export function SweepCharts({ sweep, onFilter }: { sweep: Sweep; onFilter: (text: string) => void }) {
  const { job, state, best, metric, count, goal } = sweep;
  return (
    <div class="panel">
      <p class="title">
        <span class={`state ${state}`}>{state}</span>
        <span class="cut" title={best ?? ''}>
          {best === null ? `No task has ended with a value of ${metric}.` : `best ${best}`}
        </span>
        <button type="button" class="link" onClick={() => onFilter(`job ${job}`)}>
          job {job}
        </button>
      </p>
      {best !== null && <Curve sweep={sweep} />}
      {best !== null && (
        <p class="quiet">
          {metric} of {count} tasks, {goal === 'minimize' ? 'smaller is better' : 'larger is better'}; ○
          stopped early, — best so far
        </p>
      )}
    </div>
  );
}

function Curve({ sweep }: { sweep: Sweep }) {
  const { metric, goal, count, best, points, records } = sweep;
  const sign = goal === 'minimize' ? 1 : -1;
  const sorted = points.map(({ value }) => value).sort((a, b) => sign * (a - b));
  const top = records.at(-1)?.value ?? 0;
  const worst = sorted[Math.max(1, Math.ceil(sorted.length * SHOWN_SHARE)) - 1] ?? top;
  const x = (trial: number) => place(0.06 + (0.94 * (trial - 1)) / Math.max(1, count - 1));
  // Better values of both goals are where a person expects them: small ones below, large ones above.
  const y = (value: number) => {
    const share = worst === top ? 0 : Math.min(1, (value - top) / (worst - top));
    return place(goal === 'minimize' ? 1 - share : share);
  };
  return (
    // Places are in percent, so that dots stay round.
    <svg
      class="curve"
      role="img"
      aria-label={`${metric} of ${count} tasks, ${goal === 'minimize' ? 'smallest' : 'largest'} ${best}`}
    >
      {records.map(({ trial, value }, i) => {
        const next = records[i + 1];
        const end = x(next?.trial ?? count);
        return (
          <g key={trial} class="best">
            <line x1={x(trial)} x2={end} y1={y(value)} y2={y(value)} />
            {next !== undefined && <line x1={end} x2={end} y1={y(value)} y2={y(next.value)} />}
          </g>
        );
      })}
      {points.map(({ trial, value, stopped, parameters }) => (
        <circle key={trial} class={stopped ? 'stopped' : ''} cx={x(trial)} cy={y(value)} r={4}>
          <title>{`${metric}=${short(value)}${stopped ? ' (stopped early)' : ''} ${parameters}`}</title>
        </circle>
      ))}
      <text x="0" y="12">
        {short(goal === 'minimize' ? worst : top)}
      </text>
      <text x="0" y="98%">
        {short(goal === 'minimize' ? top : worst)}
      </text>
    </svg>
  );
}

const place = (share: number) => `${(EDGE + share * (100 - 2 * EDGE)).toFixed(1)}%`;
const short = (value: number) => String(Number(value.toPrecision(4)));
