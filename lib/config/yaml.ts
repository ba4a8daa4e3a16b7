// The package yaml, loaded where there is something to read.
import type * as YAML from 'yaml';

/** Loaded only where there is a file, and synchronously, as constructors need the result. */
export function loadYAML(): typeof YAML {
  const require = process.getBuiltinModule('node:module').createRequire(import.meta.filename);
  return require('yaml') as typeof YAML;
}

/**
 * The line of something that is nested deeper than so many levels; null: nothing is. Composing a document recurses, and a stack
 * that fills up can take the whole process down, so this is measured before, in the parser's flat syntax tree.
 */
export function nestingBeyond(yaml: typeof YAML, text: string, maxDepth: number): number | null {
  const lines = new yaml.LineCounter();
  const open: { token: YAML.CST.Token; depth: number }[] = [];
  for (const token of new yaml.Parser(lines.addNewLine).parse(text)) open.push({ token, depth: 0 });
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { token, depth } = next;
    if (depth > maxDepth) return lines.linePos(token.offset).line;
    if (token.type === 'document' && token.value) open.push({ token: token.value, depth });
    if (!('items' in token)) continue;
    for (const { key, value } of token.items) {
      if (key) open.push({ token: key, depth: depth + 1 });
      if (value) open.push({ token: value, depth: depth + 1 });
    }
  }
  return null;
}
