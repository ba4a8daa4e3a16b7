// docs/json.md and python/gpu_owner/records.py are made of the schemas in lib/shapes: `npm run generate` writes them.
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type ShapeSchema as Schema, SHAPES } from '../../lib/shapes/index.ts';
import { root } from '../support/machine.ts';

function isNullable({ type, anyOf = [] }: Schema): boolean {
  return [type].flat().includes('null') || anyOf.some((each) => each.type === 'null');
}

const schemas = Object.entries(SHAPES).map(([name, { json }]) => [name, json as Schema] as const);

const words = ({ enum: values = [] }: Schema) => values.filter((value) => value !== null);
const refOf = ({ $ref, anyOf = [] }: Schema) =>
  ($ref ?? anyOf.find((each) => each.$ref)?.$ref)?.replace(/.*\//, '');
/** The object in a field, or in the list that the field is. */
const objectIn = (schema: Schema): Schema | undefined =>
  [schema, schema.items, ...(schema.anyOf ?? [])].find((each) => each?.properties !== undefined);
const elementsOf = (schema: Schema) =>
  schema.items ?? schema.anyOf?.find((each) => each.type === 'array')?.items;

function typeInWords(schema: Schema): string {
  const ref = refOf(schema);
  const elements = elementsOf(schema);
  const object = objectIn(schema);
  if (ref !== undefined) return `[${ref}](#${ref.toLowerCase()})`;
  if (elements !== undefined && object === undefined) return `list of ${typeInWords(elements)}`;
  if (object !== undefined)
    return `${elements ? 'list of ' : ''}\`{ ${Object.keys(object.properties ?? {}).join(', ')} }\``;
  if (words(schema).length > 0)
    return words(schema)
      .map((word) => `\`${word}\``)
      .join(', ');
  return [schema.type].flat().find((type) => type !== 'null') as string;
}

const INTRODUCTION = `# Records in JSON

These records are what \`--json\` prints, and what [the web API](status.md#the-api), the [Python](python.md) and
[Node.js](nodejs.md) modules return. Sizes are in bytes, times in ISO 8601. More members may come: ignore unknown ones.

- A member with **?** is left out if there is nothing to say. Others are \`null\` if unknown, where the table says so.
- Members in *italics* have text of other users: for people, not for decisions.
- In Python, each table is a \`TypedDict\` in \`gpu_owner.records\`.

<!-- written by \`npm run generate\`, from lib/shapes -->
`;

/** The rows of a record's table. */
function rowsOf(schema: Schema): string[] {
  return Object.entries(schema.properties ?? {}).map(([key, field]) => {
    const isForeign = (elementsOf(field) ?? field)['x-foreign'];
    const member = `${isForeign ? `*\`${key}\`*` : `\`${key}\``}${schema.required?.includes(key) ? '' : ' **?**'}`;
    return `| ${member} | ${typeInWords(field)}${isNullable(field) ? ' or null' : ''} | ${field.description ?? ''} |`;
  });
}

test('docs/json.md is up to date', async () => {
  const parts = schemas.map(([name, schema]) => {
    // A share has nearly all that a lease has.
    const shared = name === 'Share' ? rowsOf(SHAPES.Lease?.json as Schema) : [];
    const rows = rowsOf(schema).filter((row) => !shared.includes(row));
    const more = shared.length > 0 ? ' It has the members of a [lease](#lease) but `nested`, and:' : '';
    return `## ${name}\n\n${schema.description}${more}\n\n| member | type | |\n|---|---|---|\n${rows.join('\n')}\n`;
  });
  await expect([INTRODUCTION, ...parts].join('\n')).toMatchFileSnapshot(join(root, 'docs/json.md'));
});

const SCALARS: Record<string, string> = { string: 'str', integer: 'int', number: 'float', boolean: 'bool' };
const snakeCase = (name: string) => name.replace(/[A-Z]+/g, (letters) => `_${letters.toLowerCase()}`);

test('python/gpu_owner/records.py is up to date', async () => {
  const classes: string[] = [];
  const typeOf = (schema: Schema, name: string): string => {
    const elements = elementsOf(schema);
    const object = objectIn(schema);
    const plain = () => {
      if (refOf(schema) !== undefined) return `"${refOf(schema)}"`;
      if (elements !== undefined) return `List[${typeOf(elements, name)}]`;
      if (object !== undefined) return `"${write(name, object)}"`;
      if (words(schema).length > 0)
        return `Literal[${words(schema)
          .map((word) => `"${word}"`)
          .join(', ')}]`;
      return SCALARS[[schema.type].flat().find((type) => type !== 'null') as string] as string;
    };
    return isNullable(schema) ? `Optional[${plain()}]` : plain();
  };
  const write = (name: string, { properties = {}, required = [], description }: Schema): string => {
    const fields = Object.entries(properties).map(([key, field]) => ({
      isRequired: required.includes(key),
      line: `    ${key}: ${typeOf(field, name + (key[0] as string).toUpperCase() + key.slice(1))}`,
    }));
    const optional = fields.filter(({ isRequired }) => !isRequired).map(({ line }) => line);
    const isSplit = optional.length > 0;
    const begin = isSplit ? `class _${name}(TypedDict):\n` : `class ${name}(TypedDict):\n`;
    const doc = description === undefined ? '' : `    """${description}"""\n\n`;
    const lines = fields.filter(({ isRequired }) => isRequired).map(({ line }) => line);
    if ('from' in properties || 'class' in properties) {
      const pairs = lines.map((line) => line.replace(/(\w+): (.*)/, '    "$1": $2,'));
      classes.push(
        `# ${description}\n${name} = TypedDict(\n    "${name}",\n    {\n${pairs.join('\n')}\n    },\n)\n`,
      );
    } else classes.push(`${begin}${isSplit ? '' : doc}${lines.join('\n')}\n`);
    if (isSplit) classes.push(`class ${name}(_${name}, total=False):\n${doc}${optional.join('\n')}\n`);
    return name;
  };
  for (const [name, schema] of schemas) write(name, schema);
  const attributes = Object.entries(SHAPES.GPU?.json?.properties as Record<string, Schema>).map(
    ([key, field]) =>
      `    ${snakeCase(key)}: ${typeOf(field, `GPU${(key[0] as string).toUpperCase()}${key.slice(1)}`)}`,
  );
  const text = `"""Records of \`gpu-owner … --json\`: docs/json.md has the same as tables. Written by \`npm run generate\`, from lib/shapes."""

from typing import List, Literal, Optional, TypedDict
`;
  const own = `class GPUAttributes:\n    """The members of \`GPU\`, as Python writes them."""\n\n${attributes.join('\n')}\n`;
  await expect([text, ...new Set(classes), own].join('\n\n')).toMatchFileSnapshot(
    join(root, 'python/gpu_owner/records.py'),
  );
});
