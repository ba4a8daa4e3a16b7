// The native part compiles with the standard library of every distribution: a file includes, itself or by headers of this project,
// the header of each name that it uses. Which headers a standard library includes for its own use changes from version to version.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { root } from './support/machine.ts';

const NAMES: Record<string, RegExp> = {
  algorithm:
    /\bstd::(min|max|clamp|sort|stable_sort|unique|find|find_if|any_of|all_of|none_of|count|count_if|remove|remove_if|copy|fill|lower_bound|upper_bound)\(/,
  array: /\bstd::array\b/,
  atomic: /\bstd::(atomic|memory_order)/,
  cerrno: /\berrno\b|\bE(INVAL|AGAIN|NOENT|INTR|ACCES|EXIST|PERM|SRCH|BADF)\b/,
  cctype: /\b(isdigit|isspace|isalnum|isalpha|toupper|tolower)\(/,
  chrono: /\bstd::chrono\b/,
  csignal: /\bSIG(TERM|KILL|INT|HUP|CONT|STOP|TSTP|CHLD|ALRM|USR1|USR2|PIPE)\b/,
  cstddef: /\b(ptrdiff_t|offsetof|max_align_t)\b/,
  cstdint: /\bu?int(?:8|16|32|64|ptr)_t\b|\bU?INT(?:8|16|32|64)_M(?:AX|IN)\b/,
  cstdio: /\b(printf|fprintf|snprintf|vsnprintf|fopen|fputs|puts|perror)\(/,
  cstdlib: /\b(getenv|setenv|unsetenv|strtol|strtoul|strtoll|strtoull|strtod|abort|malloc|calloc)\(/,
  cstring:
    /\b(memcpy|memmove|memset|memcmp|memchr|strlen|strnlen|strcmp|strncmp|strerror|strchr|strrchr|strstr)\(/,
  functional: /\bstd::(function|less|greater|hash)\b/,
  initializer_list: /\bstd::initializer_list\b|\bfor \([^;)]*: \{/,
  limits: /\bstd::numeric_limits\b/,
  map: /\bstd::(multi)?map\b/,
  memory: /\bstd::(unique_ptr|make_unique)\b/,
  mutex: /\bstd::(mutex|lock_guard|unique_lock)\b/,
  new: /\bstd::(nothrow|launder)\b/,
  optional: /\bstd::(optional|nullopt)\b/,
  set: /\bstd::(multi)?set\b/,
  string: /\bstd::(string|to_string|stoi|stoul)\b/,
  string_view: /\bstd::string_view\b/,
  tuple: /\bstd::(tuple|tie)\b/,
  type_traits: /\bstd::(is_same|is_trivially|is_standard|enable_if|decay|conditional)/,
  utility: /\bstd::(move|pair|exchange|forward|swap)\b/,
  vector: /\bstd::vector\b/,
};
/** Headers that have the same names: C's form of C++'s, and those that the standard says have a name as well. */
const ALSO: Record<string, string[]> = {
  cstdint: ['inttypes.h', 'cinttypes'],
  cstddef: ['cstdlib', 'cstring', 'stdlib.h'],
  utility: ['map'],
  initializer_list: ['string', 'vector', 'array'],
};

const ROOMS = ['native', 'simulator', 'test/fuzz/native'];
const files = ROOMS.flatMap((room) =>
  readdirSync(join(root, room), { recursive: true, encoding: 'utf8' }).map((name) => join(room, name)),
).filter((name) => /\.(cc|h)$/.test(name));

/** The standard headers that a file includes, itself or by headers of this project. */
function includedBy(file: string, seen = new Set<string>()): Set<string> {
  const found = new Set<string>();
  if (seen.has(file)) return found;
  seen.add(file);
  for (const [, quote, name = ''] of readFileSync(join(root, file), 'utf8').matchAll(
    /^#\s*include\s*([<"])([^>"]+)/gm,
  )) {
    if (quote === '<') {
      found.add(name);
      continue;
    }
    const own = [dirname(file), 'native', '', 'native/tests'].map((base) => join(base, name));
    const header = own.find((path) => existsSync(join(root, path)));
    if (header === undefined) throw new Error(`${file} includes ${name}, which isn't there`);
    for (const each of includedBy(header, seen)) found.add(each);
  }
  return found;
}

function missingIn(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8').replace(/"(?:[^"\\\n]|\\.)*"|\/\/.*$/gm, '');
  const included = includedBy(file);
  return Object.entries(NAMES).flatMap(([header, pattern]) => {
    const use = pattern.exec(text);
    const ways = [
      header,
      ...(header.startsWith('c') ? [`${header.slice(1)}.h`] : []),
      ...(ALSO[header] ?? []),
    ];
    return use === null || ways.some((way) => included.has(way))
      ? []
      : [`${file}: ${use[0]} needs <${header}>`];
  });
}

test('native: a file includes the standard header of each name that it uses', () => {
  expect(files.length).toBeGreaterThan(100);
  expect(files.flatMap(missingIn)).toEqual([]);
});
