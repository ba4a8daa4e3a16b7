// The parameters in which new tasks differ from known ones.
import { listWords, sanitize } from '../../platform/index.ts';
import { canonical, formatValue, type Task, type Value, type Values } from '../task/index.ts';

/** New values are named for parameters with at most this many. */
const MAX_VALUES = 1000;

/** Changes that are named; more of them are a different experiment. */
const MAX_CHANGES = 3;

interface KnownPhase {
  tasks: number;
  parameters: Map<string, KnownParameter>;
}

interface KnownParameter {
  tasks: number;
  /** Canonical, with a spelling of each; null: too many. */
  values: Map<string, Value> | null;
}

/** Says why a task is new, by what the known tasks of its phase have in common. Doesn't grow with their number. */
export class PlanDiff {
  readonly #phases = new Map<string, KnownPhase>();

  /** A task that is known. */
  add({ destinations, parameters }: Pick<Task, 'destinations' | 'parameters'>): void {
    for (const { phase } of destinations) {
      const known = this.#phases.get(phase) ?? { tasks: 0, parameters: new Map() };
      this.#phases.set(phase, known);
      known.tasks++;
      for (const [key, value] of Object.entries(parameters)) {
        const parameter = known.parameters.get(key) ?? { tasks: 0, values: new Map() };
        known.parameters.set(key, parameter);
        parameter.tasks++;
        parameter.values?.set(canonical(value), value);
        if (parameter.values && parameter.values.size > MAX_VALUES) parameter.values = null;
      }
    }
  }

  /**
   * Why no known task has these parameters: "`momentum` was added". null: no task is known at all.
   * @param axes the parameters that have several values in the sweep
   */
  why(phase: string, parameters: Values, axes: ReadonlySet<string>): string | null {
    if (this.#phases.size === 0) return null;
    const known = this.#phases.get(phase);
    if (known === undefined) return 'its phase is new';
    const added = Object.keys(parameters).filter((key) => !known.parameters.has(key));
    const removed = Array.from(known.parameters)
      .filter(([key, { tasks }]) => tasks === known.tasks && !Object.hasOwn(parameters, key))
      .map(([key]) => key);
    if (added.length > 0 || removed.length > 0) {
      return [...changes(added, 'added'), ...changes(removed, 'removed')].join(', ');
    }
    const changed = Object.entries(parameters).flatMap(([key, value]) => {
      const values = known.parameters.get(key)?.values;
      if (!values || values.has(canonical(value))) return [];
      const [before] = values.values();
      return values.size === 1 && !axes.has(key)
        ? `${name(key)} changed from ${shown(before as Value)} to ${shown(value)}`
        : `${name(key)} = ${shown(value)} is new`;
    });
    if (changed.length === 0) return 'the combination is new';
    if (changed.length <= MAX_CHANGES) return changed.join(', ');
    return `${changed.slice(0, MAX_CHANGES).join(', ')}, and ${changed.length - MAX_CHANGES} more`;
  }
}

function changes(keys: readonly string[], what: string): string[] {
  if (keys.length === 0) return [];
  if (keys.length > MAX_CHANGES) return [`${keys.length} parameters were ${what}`];
  return [`${listWords(keys.map(name))} ${keys.length === 1 ? 'was' : 'were'} ${what}`];
}

function name(key: string): string {
  return `\`${sanitize(key, 60)}\``;
}

function shown(value: Value): string {
  return sanitize(formatValue(value), 60) || "''";
}
