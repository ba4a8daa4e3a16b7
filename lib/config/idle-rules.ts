import { invalidValue, parseDuration, parsePercent } from '../platform/index.ts';
import { parseBoolean } from './criteria.ts';
import { mapping, namesIn, type Place, parseTime, single } from './yaml.ts';

/** The key `idle` of a machine's file: what becomes of jobs whose GPUs do nothing. */
export interface IdleRules {
  /** When their user is warned, in ms. */
  afterMs: number;
  /** How much later the job is ended, in ms; null: never. */
  endMs: number | null;
  /** Whether notifyCommand and notifyWebhook send the warning, too. */
  notify: boolean;
  /** Users whose jobs are left alone, by name, or by number as text. */
  users: readonly string[];
  /** Utilization below this counts as none, in percent. */
  minUtilization: number;
}

const EXAMPLE = '{ after: 1h, notify: true, end: 30m-later, except: { users: [alice] } }';
const DEFAULTS: IdleRules = { afterMs: 0, endMs: null, notify: false, users: [], minUtilization: 1 };

const parseExceptions = mapping<Partial<IdleRules>>(
  '{ users: [alice] }',
  {},
  {
    users: (place) => ({ users: namesIn(place, EXAMPLE) }),
    minUtilization: (place) => ({ minUtilization: single(place, parseLeast) }),
  },
);

const parseRules = mapping(EXAMPLE, DEFAULTS, {
  after: (place) => ({ afterMs: single(place, parseAfter) }),
  notify: (place) => ({ notify: single(place, parseBoolean) }),
  end: (place) => ({ endMs: single(place, parseEnd) }),
  except: parseExceptions,
});

/** @throws ERR_CONFIGURATION */
export function parseIdleRules(place: Place): IdleRules {
  const rules = parseRules(place);
  if (rules.afterMs > 0) return rules;
  throw place.refuse(
    place.node,
    `idle: it needs after, the time in which GPUs did nothing, such as ${EXAMPLE}`,
  );
}

function parseAfter(value: unknown, name: string): number {
  const ms = parseTime(value, name);
  if (ms > 0) return ms;
  throw invalidValue(name, value, 'a time', 'use 30m, 1h, …');
}

function parseEnd(value: unknown, name: string): number | null {
  if (value === 'never') return null;
  const [, time = ''] = /^(.*)-later$/.exec(String(value)) ?? [];
  if (time !== '') return parseDuration(time, name);
  throw invalidValue(name, value, 'a time after the warning', "use '30m-later' or 'never'");
}

function parseLeast(value: unknown, name: string): number {
  const percent = Math.ceil(parsePercent(value, name));
  if (percent >= 1) return percent;
  throw invalidValue(name, value, 'a percentage from 1 to 100', 'use 5');
}
