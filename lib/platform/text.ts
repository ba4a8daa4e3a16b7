// Text that others wrote (process names, lock records, driver strings) is printed on people's terminals:
// what could move the cursor, retitle the window or reverse the reading direction is taken out first.

// The regular expressions that need Unicode's tables, or are long, are made when they are used: that is rare, and takes the
// start of a program a quarter of a millisecond.

const escapeSequences = () =>
  new RegExp(
    [
      // Strings (OSC, DCS, SOS, PM, APC) with their terminator; without one, only the introducer is dropped below.
      '(?:\\x1b[\\]PX^_]|[\\x90\\x98\\x9d-\\x9f])[^\\x07\\x1b\\x90\\x98\\x9c-\\x9f]*(?:\\x07|\\x1b\\\\|\\x9c)',
      // Control sequences: colours, cursor movement, modes.
      '(?:\\x1b\\[|\\x9b)[0-?]*[ -/]*[@-~]',
      // Other sequences, such as a reset or a change of character set.
      '\\x1b[ -/]*[0-~]',
    ].join('|'),
    'g',
  );

/** Most text is this, and looking for the rest takes ten times as long at first. */
const PLAIN = /^[!-~](?:[ -~]*[!-~])?$/;

const LINE_BREAKS_AND_TABS = /[\t-\r\x85\u2028\u2029]+/g;

// Controls (C0, DEL, C1), directional overrides and marks, invisible characters, tags, lone surrogates.
const unprintable = () =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;

/**
 * Makes foreign text harmless to print on one line: no control characters or escape sequences, no directional
 * overrides, no line breaks, at most `max` characters (then it ends with '…'). Anything but a string gives ''.
 */
export function sanitize(text: unknown, max = 200): string {
  if (typeof text !== 'string') return '';
  if (text === '' || (text.length <= max && PLAIN.test(text))) return text;
  // The bound keeps a megabyte of escape sequences from costing anything.
  const clean = text
    .slice(0, max * 8 + 1024)
    .replace(LINE_BREAKS_AND_TABS, ' ')
    .replace(escapeSequences(), '')
    .replace(unprintable(), '')
    .trim();
  if (clean.length <= max) return clean;
  const characters = Array.from(clean);
  return characters.length <= max ? clean : `${characters.slice(0, Math.max(0, max - 1)).join('')}…`;
}

/** The lines of a program's output, harmless to show. A redrawn line (a progress bar) looks as it was drawn last. */
export function outputLines(text: string): string[] {
  const [escapes, others] = [escapeSequences(), unprintable()];
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line) => {
    const drawn = line.split('\r').findLast((each) => each !== '') ?? '';
    return drawn.replaceAll('\t', '    ').replace(escapes, '').replace(others, '');
  });
}

/** A value as an error message shows it: strings in quotes, everything harmless and short. */
export function showValue(value: unknown): string {
  if (typeof value === 'string') return `'${sanitize(value, 60)}'`;
  if (typeof value === 'bigint') return sanitize(`${value}n`, 60);
  if (value === null || ['undefined', 'number', 'boolean'].includes(typeof value)) return String(value);
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : 'a list';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

/** Words as a list for people: 'a', 'a and b', 'a, b and c'. */
export function listWords(words: readonly string[], conjunction = 'and'): string {
  if (words.length < 2) return words[0] ?? '';
  return `${words.slice(0, -1).join(', ')} ${conjunction} ${words[words.length - 1]}`;
}

/** `10,000,000`; what is too large to be counted exactly: `1.2e+30`. The first call of `toLocaleString` would take 20 ms. */
export function formatCount(count: number): string {
  return count <= Number.MAX_SAFE_INTEGER
    ? String(count).replace(/\B(?=(\d{3})+$)/g, ',')
    : count.toPrecision(2);
}

/** '1st', '2nd', '11th' */
export function ordinal(number: number): string {
  const teens = number % 100 >= 11 && number % 100 <= 13;
  return `${number}${(!teens && ['th', 'st', 'nd', 'rd'][number % 10]) || 'th'}`;
}

/** The known word that `word` is most likely a misspelling of, or null. Case, '-' and '_' don't count. */
export function closest(word: string, known: readonly string[]): string | null {
  const wanted = fold(word).slice(0, 64);
  let best: string | null = null;
  // A word of one letter may differ in none.
  let bestDistance = wanted.length < 2 ? 1 : Math.max(1, Math.floor(wanted.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(wanted, fold(candidate));
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

function fold(word: string): string {
  return word.toLowerCase().replace(/[-_ \u2010-\u2015\u2212]/g, '');
}

/** Two letters that changed places count once. */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitution = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      const swap = swapped ? (before[j - 2] ?? 0) + 1 : Number.POSITIVE_INFINITY;
      next.push(Math.min(substitution, swap, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    before = row;
    row = next;
  }
  return row[b.length] ?? 0;
}

/** Words as one would type them: those that a shell would take apart or interpret are quoted, also a first one like `A=1`. */
export function shellWords(words: readonly string[]): string {
  const plain = /^[\w@%+=:,./-]+$/;
  return words
    .map((word, i) =>
      plain.test(word) && !(i === 0 && /^[A-Za-z_]\w*\+?=/.test(word))
        ? word
        : `'${word.replaceAll("'", "'\\''")}'`,
    )
    .join(' ');
}

/** Lines of at most `width` characters. A command in backticks stays together where it fits; longer words stay whole. */
export function wrapText(text: string, width: number): string[] {
  const pieces = text.match(/[^\s`]*`[^`]*`[^\s`]*|\S+/g) ?? [];
  const lines: string[] = [];
  let line = '';
  for (const word of pieces.flatMap((piece) => (piece.length <= width ? [piece] : piece.split(/\s+/)))) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else {
      line = line === '' ? word : `${line} ${word}`;
    }
  }
  return [...lines, line];
}

// Characters that take two columns: East Asian ones and emoji.
const wide = () =>
  /[\p{Emoji_Presentation}\u1100-\u115f\u2e80-\ua4cf\ua960-\ua97c\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]/u;

const ONE_COLUMN_EACH = /^[ -~]*$/;

/** A line that is too wide would be broken by the terminal, and only its last part could be erased. @param width in columns */
export function fitColumns(text: string, width: number): string {
  if (ONE_COLUMN_EACH.test(text))
    return text.length <= width ? text : `${text.slice(0, Math.max(0, width - 1))}…`;
  const isWide = wide();
  let used = 0;
  let kept = '';
  for (const character of text) {
    const columns = isWide.test(character) ? 2 : 1;
    if (used + columns < width) kept += character;
    used += columns;
  }
  return used <= width ? text : `${kept}…`;
}

/** Cells that need quotes, by RFC 4180 or for readers that strip spaces. */
const NEEDS_QUOTES = /[",\r\n]|^\s|\s$/;

/** A line of a table in CSV, without its line break. */
export function csvLine(cells: readonly string[]): string {
  // A lone empty cell would be an empty line, which readers skip.
  if (cells.length === 1 && cells[0]?.trim() === '') return `"${cells[0]}"`;
  return cells.map((cell) => (NEEDS_QUOTES.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(',');
}

/** A short name of some bytes, eight hexadecimal digits: FNV-1a, which is the same few lines in the simulator. For no secrets. */
export function fnv1a(bytes: Uint8Array): string {
  const hash = bytes.reduce((value, byte) => Math.imul(value ^ byte, 0x01000193), 0x811c9dc5 | 0) >>> 0;
  return hash.toString(16).padStart(8, '0');
}
