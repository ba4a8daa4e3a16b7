// The GPU hours of each user on each of the last 30 days.
import type { UsageAnswer } from '../lib/views/web/answers.ts';
import type { Column } from './listing.tsx';

type UserDays = UsageAnswer['users'][number];

const HEIGHT = 20;

/** How long an answer is good for. */
export const usageIntervalMs = () => 5 * 60_000;

/** The bars of all users have one scale. */
export function usageColumns({ days, users }: UsageAnswer): readonly Column<UserDays>[] {
  const most = mostOf(users);
  return [
    { title: 'User', cell: ({ user }) => user, kind: 'heading' },
    { title: 'GPU hours', cell: ({ gpuHours }) => hoursText(sumOf(gpuHours)) },
    {
      title: 'Each day',
      cell: (row) => <Bars row={row} days={days} most={most} />,
      kind: 'bars',
    },
  ];
}

/** Says what the bars are. */
export function Scale({ days, users }: UsageAnswer) {
  return (
    <p class="legend">
      {days[0]} to {days.at(-1)}, up to {hoursText(mostOf(users))} GPU hours a day
    </p>
  );
}

function Bars({
  row: { user, gpuHours },
  days,
  most,
}: {
  row: UserDays;
  days: readonly string[];
  most: number;
}) {
  const own = Math.max(...gpuHours);
  const label = `${user}: up to ${hoursText(own)} GPU hours a day, on ${days[gpuHours.indexOf(own)]}`;
  return (
    <svg role="img" aria-label={label} viewBox={`0 0 ${days.length} ${HEIGHT}`} preserveAspectRatio="none">
      {gpuHours.map((hours, i) => (
        <g key={days[i]}>
          <title>{`${days[i]}: ${hoursText(hours)} GPU hours`}</title>
          <rect class="day" x={i} width={1} height={HEIGHT} />
          <rect x={i + 0.1} width={0.8} y={HEIGHT * (1 - hours / most)} height={(HEIGHT * hours) / most} />
        </g>
      ))}
    </svg>
  );
}

const mostOf = (users: readonly UserDays[]) => Math.max(...users.flatMap(({ gpuHours }) => gpuHours));
const sumOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0);
const hoursText = (hours: number) => (hours >= 100 ? hours.toFixed(0) : hours.toFixed(1));
