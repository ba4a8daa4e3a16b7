import { diagnose, type Finding, type Level, Page } from '../check/index.ts';
import { listWords, ownProgram } from '../platform/index.ts';
import type { Command } from './command.ts';
import { type OptionGroup, type Parsed, rejectOperands, SIMULATE } from './command-line.ts';
import { hasColour, isTerminal, pageWidth, say, show } from './output.ts';

const EXIT_PROBLEMS = 1;

const TITLES: Record<string, string> = {
  installation: 'Installation',
  configuration: 'Configuration',
  'lock-directory': 'Lock directory',
  gpus: 'Driver and GPUs',
};
const COLOURS: Record<Level, string> = { ok: '32', note: '36', warning: '33', problem: '31' };
const LEVELS: readonly Level[] = ['problem', 'warning', 'note'];

const INDENT = '  ';
const LEVEL_WIDTH = 'problem'.length;

const GROUPS = [
  {
    options: {
      json: {
        help: 'print an array of { id, level, subject, text, remedy }; level is ok, note, warning or problem',
      },
      ...SIMULATE,
    },
  },
] as const satisfies readonly OptionGroup[];

async function doctor(parsed: Parsed<typeof GROUPS>): Promise<void> {
  const { values } = parsed;
  rejectOperands(parsed);
  const findings = await diagnose(ownProgram(), (doing) => {
    if (isTerminal(2)) say(`still ${doing} …`);
  });
  show(values.json ? findings : doctorPage(findings, new Page(pageWidth(), hasColour())));
  // Not by an exit code to be: processes that hang must not keep this one.
  process.exit(findings.some(({ level }) => level === 'problem') ? EXIT_PROBLEMS : 0);
}

/** Findings for people: by subject, each with its remedy, and a summary at the end. */
export function doctorPage(findings: readonly Finding[], page: Page): string {
  const lines: string[] = [];
  let subject: string | null = null;
  for (const found of findings) {
    if (found.subject !== subject) {
      if (subject !== null) lines.push('');
      subject = found.subject;
      lines.push(page.paint(TITLES[subject] ?? subject, '1'));
    }
    lines.push(...entry(found, page));
  }
  return [...lines, '', ...conclusion(findings, page)].join('\n');
}

function entry({ id, level, text, remedy }: Finding, page: Page): string[] {
  const head = INDENT + page.paint(level, COLOURS[level]) + ' '.repeat(LEVEL_WIDTH - level.length + 2);
  // The name to look up in the documentation, or to tell a person who helps.
  const name = `[${id}]`;
  const lines = page.entry(
    head,
    INDENT.length + LEVEL_WIDTH + 2,
    level === 'ok' ? text : `${text} ${name}`,
    remedy,
  );
  return lines.map((line) =>
    level !== 'ok' && line.endsWith(name) ? line.slice(0, -name.length) + page.paint(name, '2') : line,
  );
}

function conclusion(findings: readonly Finding[], page: Page): string[] {
  const counts = LEVELS.map((level) => findings.filter((found) => found.level === level).length);
  const words = LEVELS.flatMap((level, i) => {
    const count = counts[i] ?? 0;
    return count === 0 ? [] : [page.paint(`${count} ${level}${count === 1 ? '' : 's'}`, COLOURS[level])];
  });
  const [problems = 0] = counts;
  if (words.length === 0) return ['All is well.'];
  if (problems === 0) return [`No problem; ${listWords(words)}.`];
  const lines = findings
    .filter(({ level }) => level === 'problem')
    .map(({ id, text }) => `  ${shorten(`${id}: ${text}`, page.width - 2)}`);
  return [`${listWords(words)}. ${problems === 1 ? 'The problem' : 'The problems'} in short:`, ...lines];
}

function shorten(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`;
}

export const COMMAND: Command = {
  usage: '[OPTIONS]',
  about: `Checks everything that claims depend on: the installation, the configuration, the lock directory, the driver and the GPUs. It reports what it finds and what to do about it. It takes nothing, writes nothing and disturbs no claim. It starts the driver as every claim does: as root, the driver's library creates missing device nodes in /dev.`,
  groups: GROUPS,
  notes: `Exit code: 0 if there is no problem (there may be notes and warnings), 1 if there is one.`,
  run: doctor,
};
