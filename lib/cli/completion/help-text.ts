// Options of commands whose help is a text, taken from there.
import { described } from '../arguments.ts';
import { DURATIONS } from '../claim-options.ts';
import type { TextCommand } from '../command.ts';
import { type Candidates, EVERY, type Option } from '../options.ts';

const COUNTS = ['1', '2', '4', '8'];
const CANDIDATES: Readonly<Record<string, Candidates>> = {
  gpus: COUNTS,
  'gpus-per-task': COUNTS,
  grace: DURATIONS,
  format: ['csv', 'jsonl'],
  output: 'file',
  commands: 'file',
  project: 'directory',
};

export function optionsOfText({ help, options }: TextCommand): Record<string, Option> {
  const found: Record<string, Option> = {};
  const line =
    /^ {2}(?:-\w, )?--([a-z-]+)(?:( |\[=)([A-Z][A-Za-z|=]*|[a-z]+\|[a-z|]+)\]?(?: \.\.\.)?)?(?: +([^\s-].*(?:\n {20,}.*)*))?$/gm;
  const texts = new Map(
    [...help.matchAll(line)].map(([, name = '', , what, text = '']) => [name, { what, text }]),
  );
  for (const [name, option] of Object.entries({ ...described(options), ...EVERY })) {
    const said = texts.get(name);
    if (said === undefined) continue;
    const { value = said.what } = option;
    found[name] = {
      ...(CANDIDATES[name] === undefined ? {} : { candidates: CANDIDATES[name] }),
      ...option,
      help: said.text.replace(/\s+/g, ' '),
      ...(option.value === undefined ? {} : { value: said.what ?? value ?? 'VALUE' }),
    };
  }
  return found;
}
