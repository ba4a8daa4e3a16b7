// The sentences of comments and pages, for rules about words.

export interface Sentence {
  line: number;
  text: string;
}

/** A comment that has its lines to itself, or the beginning of one. Group 1 is its text. */
const WHOLE_LINE = /^\s*(?:\/\/+|\/\*\*?|\*(?=\s|$)) ?(.*?)(?:\*\/)?$/;
/** A comment behind code; with a quote in it, it may be a part of a string. */
const BEHIND_CODE = /\S\s+\/\/ ([^'"`]*)$/;
const PYTHON_WHOLE_LINE = /^\s*#+ ?(.*)$/;
const PYTHON_BEHIND_CODE = /\S\s+# ([^'"`]*)$/;
const DOC_STRING = '"""';

/** The sentences of comments in a file of JavaScript, TypeScript, C, C++ or Python. */
export function sentencesInComments(path: string, text: string): Sentence[] {
  const isPython = path.endsWith('.py');
  const [wholeLine, behindCode] = isPython
    ? [PYTHON_WHOLE_LINE, PYTHON_BEHIND_CODE]
    : [WHOLE_LINE, BEHIND_CODE];
  const found: Sentence[] = [];
  let paragraph: Sentence[] = [];
  const end = () => {
    found.push(...sentencesOf(paragraph));
    paragraph = [];
  };
  let isDocString = false;
  const lines = (isPython ? withoutTexts(text) : text).split('\n');
  for (const [index, source] of lines.entries()) {
    const line = index + 1;
    const marks = isPython ? source.split(DOC_STRING).length - 1 : 0;
    const whole = isDocString || marks > 0 ? docStringLine(source, isDocString) : wholeLine.exec(source)?.[1];
    if (marks % 2 === 1) isDocString = !isDocString;
    if (whole === undefined) {
      end();
      const behind = behindCode.exec(source)?.[1];
      if (behind !== undefined) found.push(...sentencesOf([{ line, text: behind }]));
    } else {
      if (startsParagraph(source, whole)) end();
      paragraph.push({ line, text: whole });
      if (source.includes('*/')) end();
    }
  }
  end();
  return found;
}

/** The sentences of a Markdown page outside headings, tables and code. */
export function sentencesInPage(text: string): Sentence[] {
  const found: Sentence[] = [];
  let paragraph: Sentence[] = [];
  let isCode = false;
  for (const [index, source] of `${text}\n`.split('\n').entries()) {
    const isFence = /^\s*```/.test(source);
    if (isFence) isCode = !isCode;
    const isProse = !isCode && !isFence && !/^\s*(?:$|[#|]|<!--)/.test(source);
    if (!isProse || /^\s*(?:[-*]|\d+\.) /.test(source)) {
      found.push(...sentencesOf(paragraph));
      paragraph = [];
    }
    if (isProse) paragraph.push({ line: index + 1, text: source.replace(/^\s*(?:[-*]|\d+\.) /, '') });
  }
  return found;
}

/** Python without the texts in triple quotes that aren't doc strings: these follow a colon, or begin the file. */
function withoutTexts(source: string): string {
  return source.replace(/"""[\s\S]*?"""/g, (text, at: number) => {
    const isDocString = /(?:^|:)$/.test(source.slice(0, at).replace(/#.*$/gm, '').trimEnd());
    return isDocString ? text : text.replace(/[^\n]/g, '');
  });
}

/** The part of a line of Python that belongs to a doc string. undefined: none */
function docStringLine(source: string, isInside: boolean): string | undefined {
  const parts = source.split(DOC_STRING);
  return parts[isInside ? 0 : 1];
}

function startsParagraph(source: string, comment: string): boolean {
  return /^\s*(?:\/\*|"""|[rf]""")/.test(source) || /^\s*(?:$|[-@])/.test(comment);
}

/** A paragraph's sentences, each with the line that it begins on. */
function sentencesOf(lines: readonly Sentence[]): Sentence[] {
  const sentences: Sentence[] = [];
  let open: Sentence | null = null;
  for (const { line, text } of lines) {
    for (const part of text.trim().split(/(?<=[.!?]["'`)]*) +(?=[A-Z`'"(])/)) {
      if (open !== null) open.text += ` ${part}`;
      else if (part !== '') {
        open = { line, text: part.replace(/^(?:[-*@] +)?(?:\*\*)?/, '') };
        sentences.push(open);
      }
      if (/[.!?]["'`)]*$/.test(part)) open = null;
    }
  }
  return sentences;
}
