// Rows of a section: a table, or on a phone a list, which needs no scrolling sideways.
import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';

const PHONE = '(max-width: 599px)';

export interface Column<Row> {
  title: string;
  /** null or '': nothing. A column with nothing in any row is left out. */
  cell: (row: Row) => ComponentChildren;
  /** heading: what a row is called. note, text: they break into lines. rest: it has the room that is left, and is cut. bars: a chart. */
  kind?: 'heading' | 'note' | 'text' | 'rest' | 'bars';
}

interface ListingProps<Row> {
  label: string;
  columns: readonly (Column<Row> | null)[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
}

export function Listing<Row>({ label, columns, rows, keyOf }: ListingProps<Row>) {
  const isPhone = useMedia(PHONE);
  const filled = columns
    .filter((column) => column !== null)
    .filter(({ cell }) => rows.some((row) => has(cell(row))));
  if (isPhone) {
    return (
      <ul class="list">
        {rows.map((row) => (
          <li key={keyOf(row)}>
            <dl>
              {filled.map(({ title, cell, kind }) => {
                const content = cell(row);
                return (
                  has(content) && (
                    <Pair
                      key={title}
                      name={title}
                      class={kind === 'heading' ? 'title' : kind}
                      content={content}
                    />
                  )
                );
              })}
            </dl>
          </li>
        ))}
      </ul>
    );
  }
  return (
    // Where it is wider than the screen, it must scroll by keyboard, too.
    // biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable regions need it
    <section class="scroll" aria-label={`Table: ${label}`} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {filled.map(({ title }) => (
              <th key={title} scope="col">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {filled.map(({ title, cell, kind }) => {
                const content = cell(row);
                if (kind === 'heading') {
                  return (
                    <th key={title} scope="row">
                      {content}
                    </th>
                  );
                }
                return (
                  <td key={title} class={kind} title={kind === 'rest' ? String(content ?? '') : undefined}>
                    {content}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

interface PairProps {
  name: string;
  content: ComponentChildren;
  class?: string | undefined;
  title?: string;
}

/** A name and what it is, in a <dl>. */
export function Pair({ name, content, title, class: kind }: PairProps) {
  return (
    <>
      <dt>{name}</dt>
      <dd class={kind} title={title}>
        {content}
      </dd>
    </>
  );
}

const has = (content: ComponentChildren) => content !== null && content !== undefined && content !== '';

function useMedia(query: string): boolean {
  const [isTrue, setTrue] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const look = () => setTrue(media.matches);
    media.addEventListener('change', look);
    return () => media.removeEventListener('change', look);
  }, [query]);
  return isTrue;
}
