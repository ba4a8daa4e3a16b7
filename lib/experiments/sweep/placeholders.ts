import { sanitize } from '../../platform/index.ts';
import { type Value, type Values, Written } from '../task/index.ts';

/** A text with `{names}` in it: literal text and names in turn, text first and last. */
export interface Template {
  readonly literals: readonly string[];
  readonly names: readonly string[];
}

const SIGNS = /\{\{|\}\}|\{([^{}]*)\}|[{}]/g;

/**
 * `{name}` stands for a parameter, `{{` and `}}` for braces.
 * @param refuse makes the error for a brace that is neither
 */
export function parseTemplate(text: string, refuse: (why: string) => Error): Template {
  const literals: string[] = [];
  const names: string[] = [];
  let literal = '';
  let from = 0;
  for (const match of text.matchAll(SIGNS)) {
    const [sign, name] = match;
    literal += text.slice(from, match.index);
    from = match.index + sign.length;
    if (sign === '{{' || sign === '}}') literal += sign[0];
    else if (name === undefined) throw refuse(`a single ${sign}; write ${sign}${sign} for a brace`);
    else if (name === '') throw refuse('{} names no parameter; write {{}} for the braces themselves');
    else {
      literals.push(literal);
      literal = '';
      names.push(name);
    }
  }
  literals.push(literal + text.slice(from));
  return { literals, names };
}

/** @param textOf what a name stands for, as text */
export function fillTemplate(
  { literals, names }: Template,
  textOf: (name: string, place: number) => string,
): string {
  let text = literals[0] as string;
  for (let i = 0; i < names.length; i++) text += textOf(names[i] as string, i) + literals[i + 1];
  return text;
}

/** A value, in whose strings placeholders may be. */
export type Filler = { readonly value: Value; readonly names: readonly [] } | Unfilled;

interface Unfilled {
  readonly names: readonly string[];
  fill(textOf: (name: string) => string): Value;
}

/** Strings inside of lists and maps are filled, too. @param refuse see {@link parseTemplate} */
export function filler(value: Value, refuse: (why: string) => Error): Filler {
  if (typeof value === 'string') {
    if (!/[{}]/.test(value)) return { value, names: [] };
    const template = parseTemplate(value, (why) => refuse(`'${sanitize(value, 60)}': ${why}`));
    if (template.names.length === 0) return { value: template.literals[0] as string, names: [] };
    return { names: template.names, fill: (textOf) => fillTemplate(template, textOf) };
  }
  if (typeof value !== 'object' || value === null || value instanceof Written) return { value, names: [] };
  const keys = Array.isArray(value) ? null : Object.keys(value);
  const parts = Object.values(value as Values).map((each) => filler(each, refuse));
  const assemble = (values: readonly Value[]): Value =>
    keys === null ? values : Object.fromEntries(keys.map((key, i) => [key, values[i] as Value]));
  if (parts.every(isFilled)) return { value: assemble(parts.map((part) => part.value)), names: [] };
  return {
    names: parts.flatMap((part) => part.names),
    fill: (textOf) => assemble(parts.map((part) => (isFilled(part) ? part.value : part.fill(textOf)))),
  };
}

export function isFilled(filled: Filler): filled is Extract<Filler, { value: Value }> {
  return 'value' in filled;
}
