// A program on a real pseudo-terminal, what its screen shows at any time (by xterm.js), and that as SVG: one screen, or a
// recording of several which play as an animation of CSS, without scripts.
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import xterm from '@xterm/headless';

const BRIDGE = join(dirname(import.meta.dirname), 'test/fixtures/pty_window.py');
const CELL = { width: 8.4, height: 17 };
const MARGIN = 8;
const BAR_HEIGHT = 26;
const FONT = 'DejaVu Sans Mono, Menlo, Consolas, monospace';

/** Colours of the palette by their number; `ink` is text and `paper` what is behind it. */
export const LIGHT = {
  ink: '#1b1f24',
  paper: '#ffffff',
  edge: '#d0d7de',
  palette: { 1: '#b3261e', 2: '#1a7f37', 5: '#8250df' },
};
export const DARK = {
  ink: '#d7dde4',
  paper: '#11161d',
  edge: '#4a5460',
  bar: '#222b36',
  palette: { 1: '#ff8278', 2: '#56d364', 4: '#79b8ff', 5: '#d2a8ff', 8: '#8b98a5' },
};

/** A program on a terminal. */
export class Terminal {
  #screen;
  #program;
  #chunks = [];

  constructor(columns, rows, words, { env, cwd }) {
    this.columns = columns;
    this.rows = rows;
    this.#screen = newScreen(this);
    this.#program = spawn('python3', [BRIDGE, String(columns), String(rows), ...words], {
      cwd,
      env: { ...env, TERM: 'xterm-256color', LANG: 'C.UTF-8', LC_ALL: '', NO_COLOR: '' },
      stdio: ['pipe', 'pipe', 'inherit', 'pipe'],
    });
    this.#program.stdin.on('error', () => {}); // the program has ended
    this.#program.stdout.on('data', (data) => {
      this.#chunks.push({ at: performance.now(), data });
      this.#screen.write(data);
    });
    this.closed = new Promise((resolve) => this.#program.once('close', resolve));
  }

  type(keys) {
    this.#program.stdin.write(keys);
  }

  kill() {
    this.#program.kill('SIGKILL');
  }

  get text() {
    const { active } = this.#screen.buffer;
    return Array.from({ length: this.rows }, (_, row) =>
      active.getLine(active.baseY + row).translateToString(),
    ).join('\n');
  }

  /** The screen as it is. */
  get lines() {
    return linesOf(this.#screen);
  }

  /** Screens from then on, each with the milliseconds after `start` at which it came. */
  async frames(start) {
    const screen = newScreen(this);
    const write = (data) => new Promise((resolve) => screen.write(data, resolve));
    const frames = [];
    const chunks = this.#chunks;
    for (let i = 0; i < chunks.length; i++) {
      await write(chunks[i].data);
      const next = chunks[i + 1]?.at ?? Infinity;
      // Pieces of one screen arrive together.
      if (next - chunks[i].at < 40 || next <= start) continue;
      frames.push({ at: Math.max(0, chunks[i].at - start), lines: linesOf(screen) });
    }
    return frames;
  }
}

function newScreen({ columns, rows }) {
  return new xterm.Terminal({ cols: columns, rows, allowProposedApi: true, scrollback: 0 });
}

/** Rows of a screen as pieces of one style, without what is empty. */
function linesOf(screen) {
  const { active } = screen.buffer;
  return Array.from({ length: screen.rows }, (_, row) => {
    const line = active.getLine(active.baseY + row);
    const runs = [];
    for (let at = 0; at < screen.cols; ) {
      const style = styleOf(line.getCell(at));
      const begin = at;
      let text = '';
      while (at < screen.cols && styleOf(line.getCell(at)) === style)
        text += line.getCell(at++).getChars() || ' ';
      const shown = JSON.parse(style);
      if (text.trim() !== '' || shown.reverse) runs.push({ text, column: begin, ...shown });
    }
    return runs;
  });
}

function styleOf(cell) {
  const colour = cell.isFgPalette() ? cell.getFgColor() : -1;
  return JSON.stringify({ colour, bold: cell.isBold() !== 0, reverse: cell.isInverse() !== 0 });
}

const escaped = (text) => text.replace(/[&<]/g, (c) => (c === '&' ? '&amp;' : '&lt;'));
const short = (value) => String(Math.round(value * 10) / 10);

/** @param top of the row */
function drawn({ text, column, colour, bold, reverse }, top, theme) {
  const begin = reverse ? 0 : text.length - text.trimStart().length;
  const body = reverse ? text : text.trim();
  const x = short(MARGIN + (column + begin) * CELL.width);
  const length = short(body.length * CELL.width);
  const fill = reverse ? theme.paper : theme.palette[colour];
  const box = `<rect x="${x}" y="${top}" width="${length}" height="${CELL.height}" fill="${theme.ink}"/>`;
  const attributes = [
    `x="${x}" y="${top + 13}" textLength="${length}"`,
    ...(fill === undefined ? [] : [`fill="${fill}"`]),
    ...(bold ? ['font-weight="bold"'] : []),
    // Blocks come from another font, and have to fill their cells.
    ...(/^[ -~]*$/.test(body) ? [] : ['lengthAdjust="spacingAndGlyphs"']),
  ];
  return `${reverse ? box : ''}<text ${attributes.join(' ')}>${escaped(body)}</text>`;
}

function head(width, height, theme, title, style = '') {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${short(width)} ${height}" width="${short(width)}" font-family="${FONT}" font-size="14" fill="${theme.ink}" role="img">`,
    `<title>${escaped(title)}</title>`,
    `<style>text{white-space:pre}${style}</style>`,
    `<rect x=".5" y=".5" width="${short(width - 1)}" height="${height - 1}" rx="6" fill="${theme.paper}" stroke="${theme.edge}"/>`,
  ];
}

/** One screen. */
export function picture(terminal, title, theme) {
  const [width, height] = [
    terminal.columns * CELL.width + 2 * MARGIN,
    terminal.rows * CELL.height + 2 * MARGIN,
  ];
  const rows = terminal.lines.map((line, row) =>
    line.map((each) => drawn(each, MARGIN + row * CELL.height, theme)).join(''),
  );
  return [...head(width, height, theme, title), ...rows.filter((row) => row !== ''), '</svg>', ''].join('\n');
}

/**
 * Terminals below each other, as an animation that begins anew at its end. Where nothing moves (programs that know no animations,
 * readers who don't want any) it is the picture at `stillMs`.
 * @param panes [{ terminal, name, frames }], frames as of `Terminal.frames`
 */
export function recording(panes, { title, theme, durationMs, stillMs }) {
  const width = Math.max(...panes.map(({ terminal }) => terminal.columns)) * CELL.width + 2 * MARGIN;
  const always = [];
  /** Rows by when they are seen, "FROM TO". */
  const seen = new Map();
  let top = 0;
  for (const { terminal, name, frames } of panes) {
    always.push(
      `<rect x="1" y="${top + 1}" width="${short(width - 2)}" height="${BAR_HEIGHT - 2}" rx="5" fill="${theme.bar}"/>`,
      `<text x="${short(width / 2)}" y="${top + 17}" text-anchor="middle" font-size="13" fill="${theme.palette[8]}">${escaped(name)}</text>`,
    );
    const first = top + BAR_HEIGHT + MARGIN / 2;
    for (let row = 0; row < terminal.rows; row++) {
      for (const { from, to, line } of spans(frames, row, durationMs)) {
        const body = line.map((each) => drawn(each, first + row * CELL.height, theme)).join('');
        const key = `${Math.round(from)} ${Math.round(to)}`;
        if (body !== '') seen.set(key, (seen.get(key) ?? '') + body);
      }
    }
    top = first + terminal.rows * CELL.height + MARGIN / 2;
  }
  const rules = ['.f{visibility:hidden}.s{visibility:visible}'];
  const percent = (ms) => `${Math.round((ms / durationMs) * 1e4) / 100}%`;
  const groups = [...seen].map(([key, body], index) => {
    const [from, to] = key.split(' ').map(Number);
    if (from === 0 && to === durationMs) return `<g>${body}</g>`;
    const steps = [
      ...(from === 0 ? [] : ['0%{visibility:hidden}']),
      `${percent(from)}{visibility:visible}`,
      ...(to === durationMs ? [] : [`${percent(to)}{visibility:hidden}`]),
    ];
    rules.push(`@keyframes a${index}{${steps.join('')}}.a${index}{animation-name:a${index}}`);
    return `<g class="f${from <= stillMs && stillMs < to ? ' s' : ''} a${index}">${body}</g>`;
  });
  rules.push(
    `.f{animation-duration:${durationMs}ms;animation-timing-function:step-end;animation-iteration-count:infinite}`,
    '@media (prefers-reduced-motion:reduce){.f{animation:none}}',
  );
  return [...head(width, top, theme, title, rules.join('\n')), ...always, ...groups, '</svg>', ''].join('\n');
}

/** How long a row looked how. */
function spans(frames, row, durationMs) {
  const found = [];
  for (const { at, lines } of frames) {
    const line = lines[row];
    const last = found.at(-1);
    if (last !== undefined && JSON.stringify(last.line) === JSON.stringify(line)) continue;
    if (last !== undefined) last.to = at;
    found.push({ from: at, to: durationMs, line });
  }
  return found.filter(({ from, to }) => Math.round(from) < Math.round(to));
}
