import { sanitize, shellWords } from '../../platform/index.ts';
import { fillTemplate, parseTemplate, type Template } from './placeholders.ts';

/** What surrounds a placeholder, and so how a value is quoted there. */
type Quoting = 'none' | 'single' | 'double';

/** A line for `sh -c`, in which values are filled in so that no shell can take them for anything but text. */
export interface ShellLine {
  readonly names: readonly string[];
  fill(textOf: (name: string) => string): string;
}

/**
 * @param refuse makes the error for a placeholder in a place where quoting depends on more than quotes, such as inside of
 *   backquotes or a here-document
 */
export function parseShellLine(line: string, refuse: (why: string) => Error): ShellLine {
  const template = parseTemplate(line, refuse);
  const quotings = surroundings(template, refuse);
  return {
    names: template.names,
    fill: (textOf) =>
      fillTemplate(template, (name, place) => quoted(textOf(name), quotings[place] as Quoting)),
  };
}

function quoted(value: string, quoting: Quoting): string {
  if (quoting === 'none') return shellWords([value]);
  return quoting === 'single' ? value.replaceAll("'", "'\\''") : value.replace(/[\\"$`]/g, '\\$&');
}

function surroundings({ literals, names }: Template, refuse: (why: string) => Error): Quoting[] {
  const quotings: Quoting[] = [];
  let quoting: Quoting = 'none';
  /** What makes quoting unsure from here to the end of the line. */
  let unsure: string | null = null;
  literals.forEach((text, place) => {
    // To a shell, the line goes on as if a backslash and the line break behind it weren't there.
    const literal = text.replace(/\\(.)/gs, (pair, escapee) => (escapee === '\n' ? '' : pair));
    let escaped = false;
    let dollar = false;
    for (let i = 0; i < literal.length; i++) {
      const c = literal[i] as string;
      const before = literal[i - 1] ?? (place === 0 ? ' ' : '}');
      dollar = c === '$' && !escaped && quoting !== 'single';
      if (quoting === 'single') {
        if (c === "'") quoting = 'none';
      } else if (escaped) escaped = false;
      else if (c === '\\') escaped = true;
      else if (c === '"') quoting = quoting === 'double' ? 'none' : 'double';
      else if (c === "'" && quoting === 'none') quoting = 'single';
      else unsure ??= unsureFrom(literal, i, before, quoting);
    }
    const name = names[place];
    if (name === undefined) return;
    const shown = `{${sanitize(name, 60)}}`;
    if (escaped)
      throw refuse(`${shown} after a backslash: it would undo the quoting; leave the backslash out`);
    if (dollar) {
      throw refuse(`$${shown}: write ${shown} for the parameter, \${{...}} for a variable of the shell`);
    }
    if (unsure !== null) {
      throw refuse(
        `${shown} can't be quoted reliably after ${unsure}; begin the line with VALUE=${shown}; and write "$VALUE" there`,
      );
    }
    quotings.push(quoting);
  });
  return quotings;
}

function unsureFrom(literal: string, i: number, before: string, quoting: Quoting): string | null {
  if (/^\$\{\w+\}/.test(literal.slice(i, i + 100))) return null;
  const two = literal.slice(i, i + 2);
  if (two[0] === '`') return 'a backquote (`)';
  if (quoting === 'double') return two === '$(' || two === '${' ? `${two} in double quotes` : null;
  if (two === '$(' && literal[i + 2] === '(') return '$((';
  if (two === "$'" || two === '${' || two === '<<' || two === '((') return two;
  return two[0] === '#' && /[\s;&|()]/.test(before) ? '#' : null;
}
