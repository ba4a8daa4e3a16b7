// A list whose rows are two lines: cells in columns that are the same in each row, and below them one sentence.
import type { ComponentChildren } from 'preact';

export interface Column<Row> {
  /** Also a class: page.css has the widths of columns, by content where it is a name. */
  name: string;
  /** null or '': nothing. */
  cell: (row: Row) => ComponentChildren;
  /** The text whose length is the column's width; missing: page.css has a width. */
  text?: (row: Row) => string | null | undefined;
}

interface ListingProps<Row> {
  label: string;
  kind: string;
  columns: readonly (Column<Row> | null)[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
  /** The second line; null: none. */
  second?: (row: Row) => ComponentChildren;
  /** More, at a click; missing: nothing. */
  more?: (row: Row) => ComponentChildren;
}

const MAX_CHARACTERS = 24;

export function Listing<Row>({ label, kind, columns, rows, keyOf, second, more }: ListingProps<Row>) {
  const shown = columns.filter((column) => column !== null);
  const widths = shown.flatMap(({ name, text }) => {
    if (text === undefined) return [];
    const longest = Math.max(...rows.map((row) => text(row)?.length ?? 0));
    return [[`--${name}`, `${Math.min(longest, MAX_CHARACTERS)}ch`] as const];
  });
  return (
    <ul class={`list ${kind}`} aria-label={label} style={Object.fromEntries(widths)}>
      {rows.map((row) => {
        const sentence = second?.(row) ?? null;
        const lines = (
          <>
            {shown.map(({ name, cell }) => {
              const content = cell(row);
              return (
                <span
                  key={name}
                  class={`cut ${name}`}
                  title={typeof content === 'string' ? content : undefined}
                >
                  {content}
                </span>
              );
            })}
            {sentence !== null && <span class="second">{sentence}</span>}
          </>
        );
        return (
          <li key={keyOf(row)}>
            {more === undefined ? (
              <div class="row">{lines}</div>
            ) : (
              <details>
                <summary class="row">{lines}</summary>
                <dl>{more(row)}</dl>
              </details>
            )}
          </li>
        );
      })}
    </ul>
  );
}

interface PairProps {
  name: string;
  content: ComponentChildren;
  class?: string | undefined;
}

/** A name and what it is, in a <dl>; nothing where there is nothing to say. */
export function Pair({ name, content, class: kind }: PairProps) {
  if (content === null || content === undefined || content === '') return null;
  return (
    <>
      <dt>{name}</dt>
      <dd class={kind}>{content}</dd>
    </>
  );
}
