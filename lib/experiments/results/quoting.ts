/** What would be read otherwise without quotes, by RFC 4180 or by readers that strip spaces. */
const NEEDS_QUOTES = /[",\r\n]|^\s|\s$/;

function quote(cell: string): string {
  return NEEDS_QUOTES.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
}

/** A line of a table, without its line break. */
export function formatRow(cells: readonly string[]): string {
  // A lone empty cell would be an empty line, which readers skip.
  if (cells.length === 1 && (cells[0] as string).trim() === '') return `"${cells[0]}"`;
  return cells.map(quote).join(',');
}
