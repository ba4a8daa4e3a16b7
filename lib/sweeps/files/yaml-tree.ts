import type * as YAML from 'yaml';
import { loadYAML, problem } from '../../config/index.ts';
import { formatCount, sanitize, showValue } from '../../platform/index.ts';
import { Literal, numberInString, type Value, type Values } from '../task/index.ts';

/** A part of a YAML file, references and merges resolved, with the line in which it begins. */
export type Node =
  | { kind: 'scalar'; line: number; value: Value }
  | { kind: 'list'; line: number; items: readonly Node[]; size: number; depth: number }
  | { kind: 'map'; line: number; entries: ReadonlyMap<string, MapEntry>; size: number; depth: number };

export type MapNode = Extract<Node, { kind: 'map' }>;

export interface MapEntry {
  line: number;
  node: Node;
}

const MAX_DEPTH = 20;
/** Scalars, references followed: some lines of references to references can mean billions. */
const MAX_SIZE = 1_000_000;

/** Reads an unquoted scalar. @param refuse makes the error for one that can't be kept */
export type ReadScalar = (text: string, refuse: (why: string) => Error) => Value;

/** @returns null for a file without content @throws ERR_CONFIGURATION, with the line */
export function readYAMLTree(text: string, path: string, readScalar: ReadScalar = plainScalar): Node | null {
  return new Reader(text, path, readScalar).read();
}

/** A node as a parameter has it. */
export function toValue(node: Node): Value {
  if (node.kind === 'scalar') return node.value;
  if (node.kind === 'list') return node.items.map(toValue);
  return Object.fromEntries(Array.from(node.entries, ([key, entry]) => [key, toValue(entry.node)]));
}

/** The value of a scalar; undefined: it is none. */
export function scalarOf(node: Node | undefined): Exclude<Value, readonly Value[] | Values> | undefined {
  return node?.kind === 'scalar' ? (node.value as Exclude<Value, readonly Value[] | Values>) : undefined;
}

/** A truth value, however it is written. null: it is none. */
export function truthOf(node: Node | undefined): boolean | null {
  const value = scalarOf(node);
  const data = value instanceof Literal ? value.data : value;
  return typeof data === 'boolean' ? data : null;
}

/** A number, also from texts such as 1e-3, which only PyYAML takes for one. */
export function numberOf(node: Node | undefined, refuse: () => Error): number {
  const value = scalarOf(node);
  const data =
    value instanceof Literal ? value.data : typeof value === 'string' ? numberInString(value) : value;
  if (typeof data !== 'number' || !Number.isFinite(data)) throw refuse();
  return data;
}

class Reader {
  readonly #path: string;
  readonly #text: string;
  readonly #readScalar: ReadScalar;
  readonly #yaml = loadYAML();
  readonly #lines = new this.#yaml.LineCounter();
  /** null: still being read. A name can be redefined; references mean the last definition before them. */
  readonly #anchors = new Map<string, Node | null>();

  constructor(text: string, path: string, readScalar: ReadScalar) {
    this.#text = text;
    this.#path = path;
    this.#readScalar = readScalar;
  }

  read(): Node | null {
    const yaml = this.#yaml;
    const document = yaml.parseDocument(this.#text, {
      lineCounter: this.#lines,
      prettyErrors: false,
      logLevel: 'error',
      version: '1.1',
      schema: 'failsafe', // what scalars mean is decided below: the parser doesn't keep how they are written
      uniqueKeys: false, // checked below: the parser compares each key with each other
    });
    const wrong = document.errors[0] ?? document.warnings.find(({ code }) => code !== 'TAG_RESOLVE_FAILED');
    if (wrong) {
      const line = this.#lines.linePos(wrong.pos[0]).line;
      throw problem(this.#path, line, explained(wrong), wrong);
    }
    const { contents } = document;
    if (
      contents === null ||
      (yaml.isScalar(contents) && contents.source === '' && contents.type === 'PLAIN')
    ) {
      return null;
    }
    return this.#node(contents, 1);
  }

  #node(node: unknown, near: number): Node {
    const yaml = this.#yaml;
    if (node === null || node === undefined) return { kind: 'scalar', line: near, value: null };
    const line = this.#lineOf(node) ?? near;
    if (yaml.isAlias(node)) {
      const target = this.#anchors.get(node.source);
      if (target === undefined)
        throw this.#mistake(line, `*${sanitize(node.source, 60)} refers to nothing above it`);
      if (target === null)
        throw this.#mistake(line, `*${sanitize(node.source, 60)} refers to a value that contains it`);
      return { ...target, line };
    }
    const { anchor } = node as YAML.Scalar;
    if (anchor !== undefined) this.#anchors.set(anchor, null);
    const read = this.#content(node as YAML.ParsedNode, line);
    if (read.kind !== 'scalar') {
      if (read.depth > MAX_DEPTH) throw this.#mistake(line, `nested deeper than ${MAX_DEPTH} levels`);
      if (read.size > MAX_SIZE) {
        throw this.#mistake(line, `more than ${formatCount(MAX_SIZE)} values, references followed`);
      }
    }
    if (anchor !== undefined) this.#anchors.set(anchor, read);
    return read;
  }

  #content(node: YAML.ParsedNode, line: number): Node {
    const yaml = this.#yaml;
    if (yaml.isScalar(node)) return { kind: 'scalar', line, value: this.#scalar(node, line) };
    const tag = node.tag?.replace('tag:yaml.org,2002:', '!!');
    if (tag !== undefined && tag !== '!!map' && tag !== '!!seq' && tag !== '!') {
      throw this.#mistake(line, `the tag ${showValue(tag)} isn't supported here; leave it out`);
    }
    if (yaml.isSeq(node)) {
      const items = node.items.map((item) => this.#node(item, line));
      return { kind: 'list', line, items, ...extent(items) };
    }
    const entries = this.#entries(node as YAML.YAMLMap, line);
    return { kind: 'map', line, entries, ...extent(Array.from(entries.values(), (entry) => entry.node)) };
  }

  /** As PyYAML does: what is merged comes first, what is written in the map itself wins, in a list of maps the earlier one. */
  #entries(map: YAML.YAMLMap, line: number): Map<string, MapEntry> {
    const merged: MapNode[] = [];
    const own = new Map<string, MapEntry>();
    for (const { key: keyNode, value } of map.items) {
      const keyLine = this.#lineOf(keyNode) ?? line;
      const key = this.#key(keyNode, keyLine);
      if (value === null && map.flow) {
        throw this.#mistake(
          keyLine,
          `{${sanitize(key, 60)}} without quotes is a map in YAML; for the placeholder write '{${sanitize(key, 60)}}' in quotes`,
        );
      }
      const node = this.#node(value, keyLine);
      if (key === '<<' && (keyNode as YAML.Scalar).type === 'PLAIN')
        merged.push(...this.#merged(node, keyLine));
      else if (own.has(key)) throw this.#mistake(keyLine, `${showValue(key)} is given twice; remove one`);
      else own.set(key, { line: keyLine, node });
    }
    const entries = new Map<string, MapEntry>();
    for (const source of merged) for (const [key, entry] of source.entries) entries.set(key, entry);
    for (const [key, entry] of own) entries.set(key, entry);
    return entries;
  }

  /** The last one wins. */
  #merged(node: Node, line: number): MapNode[] {
    const maps = node.kind === 'list' ? [...node.items].reverse() : [node];
    for (const map of maps) {
      if (map.kind !== 'map')
        throw this.#mistake(line, '<<: only a map or a list of maps can be merged, such as *name');
    }
    return maps as MapNode[];
  }

  #key(node: unknown, line: number): string {
    if (this.#yaml.isScalar(node) && node.anchor === undefined) return String(node.value);
    throw this.#mistake(line, 'a key must be a name; quote it if it has braces, brackets, & or *');
  }

  #scalar(node: YAML.Scalar, line: number): Value {
    const text = String(node.value);
    if (text.includes('\0'))
      throw this.#mistake(line, 'the character U+0000 is allowed neither in a command nor in a path');
    const refuse = (why: string) => this.#mistake(line, why);
    const tag = node.tag?.replace('tag:yaml.org,2002:', '!!');
    if (tag === undefined) return node.type === 'PLAIN' ? this.#readScalar(text, refuse) : text;
    if (tag === '!!str' || tag === '!') return text;
    if (tag === '!!float' || tag === '!!int') {
      const plain = plainScalar(text, refuse);
      const number = numberOf({ kind: 'scalar', line, value: plain }, () =>
        refuse(`${showValue(text)} isn't a number`),
      );
      if (tag === '!!float') return new Literal(number, Number.isInteger(number) ? number.toFixed(1) : text);
      if (Number.isInteger(number)) return plain;
    }
    throw this.#mistake(
      line,
      `the tag ${showValue(tag)} isn't supported here; leave it out, or put a string in quotes`,
    );
  }

  #lineOf(node: unknown): number | null {
    const range = (node as { range?: [number, number, number] | null } | null)?.range;
    return range ? this.#lines.linePos(range[0]).line : null;
  }

  #mistake(line: number, text: string): Error {
    return problem(this.#path, line, text);
  }
}

function extent(nodes: readonly Node[]): { size: number; depth: number } {
  let size = 0;
  let depth = 0;
  for (const node of nodes) {
    size += node.kind === 'scalar' ? 1 : node.size + 1;
    depth = Math.max(depth, node.kind === 'scalar' ? 0 : node.depth);
  }
  return { size, depth: depth + 1 };
}

function explained(wrong: YAML.YAMLParseError | YAML.YAMLWarning): string {
  const { code } = wrong;
  if (code === 'MULTIPLE_DOCS')
    return "a second document begins ('---'); remove it, or make it a file of its own";
  if (code === 'TAB_AS_INDENT') return 'a tab is used for indentation; YAML allows spaces only';
  const hint =
    code === 'UNEXPECTED_TOKEN' || code === 'BAD_SCALAR_START'
      ? "; a string that begins with { [ * & ! % @ or ` needs quotes, such as '{dataset}_x'"
      : '';
  return `not valid YAML: ${sanitize(wrong.message)}${hint}`;
}

/**
 * Scalars as PyYAML reads them (its resolver.py): `yes`, `010` (octal), `1:30` (base 60), `1_000`. A number with an exponent needs a dot and
 * the exponent's sign: `5e-4` is a string. The package `yaml` takes more for numbers, and reads those that PyYAML has.
 */
const NULL = /^(?:~|null|Null|NULL)$/;
const TRUE = /^(?:yes|Yes|YES|true|True|TRUE|on|On|ON)$/;
const FALSE = /^(?:no|No|NO|false|False|FALSE|off|Off|OFF)$/;
const INTEGER = /^[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][\d_]*|0x[\da-fA-F_]+|[1-9][\d_]*(?::[0-5]?\d)+)$/;
const FLOAT =
  /^(?:[-+]?\d[\d_]*\.[\d_]*(?:[eE][-+]\d+)?|\.\d[\d_]*(?:[eE][-+]\d+)?|[-+]?\d[\d_]*(?::[0-5]?\d)+\.[\d_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$/;
/** Numbers of which YAML and JavaScript have the same idea. The package `yaml` takes 30 ms to load. */
const PLAIN_NUMBER = /^(?:0|-?[1-9]\d{0,14}|-?(?:0|[1-9]\d{0,14})\.\d+)$/;

/**
 * Reads an unquoted scalar as YAML 1.1 does. Everything but numbers, truth values and null is a string, dates included.
 * @param refuse makes the error for an integer that can't be kept
 */
export function plainScalar(text: string, refuse: (why: string) => Error): Value {
  if (text === '') return null;
  if (NULL.test(text)) return new Literal(null, text);
  if (TRUE.test(text)) return text === 'true' ? true : new Literal(true, text);
  if (FALSE.test(text)) return text === 'false' ? false : new Literal(false, text);
  const data = PLAIN_NUMBER.test(text)
    ? Number(text)
    : INTEGER.test(text)
      ? readNumber('int', text)
      : FLOAT.test(text)
        ? readNumber('float', text)
        : null;
  if (data === null) return text;
  const number = Number(data);
  if (typeof data === 'bigint' && (!Number.isFinite(number) || BigInt(number) !== data))
    throw refuse(
      `${text.slice(0, 60)} is too large for an integer and would be rounded; quote it if it is a name`,
    );
  return String(number) === text ? number : new Literal(number, text);
}

let numberTags: readonly YAML.ScalarTag[] | undefined;

/** @returns null: underscores only */
function readNumber(type: 'int' | 'float', text: string): number | bigint | null {
  const yaml = loadYAML();
  numberTags ??= new yaml.Schema({ schema: 'yaml-1.1' }).tags.filter(
    (tag): tag is YAML.ScalarTag => 'test' in tag && tag.test !== undefined,
  );
  const digits = text.replaceAll('_', '');
  const tag = numberTags.find((each) => each.tag === `tag:yaml.org,2002:${type}` && each.test?.test(digits));
  const read: unknown = tag?.resolve(digits, () => {}, { intAsBigInt: true }) ?? null;
  return (yaml.isScalar(read) ? read.value : read) as number | bigint | null;
}
