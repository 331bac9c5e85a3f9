// Writes the TypeScript types of the server's API from its JSON Schema: `node types.js`; a test compares the two.

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const ANSWERED = new Set(["TokenCard", "ModelCard", "LayerCard", "MixerCard", "RunCard", "Likeliest", "Fault"]);

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.prefixItems) return `readonly [${schema.prefixItems.map(typeOf).join(", ")}]`;
  if (schema.type === "array")
    return `readonly ${/ /.test(typeOf(schema.items)) ? `(${typeOf(schema.items)})` : typeOf(schema.items)}[]`;
  return {
    string: "string",
    integer: "number",
    number: "number",
    boolean: "boolean",
    null: "null",
    object: "Readonly<Record<string, unknown>>",
  }[schema.type];
}

/** The text of `api.ts`. */
export function typesOf({ $defs, questions }) {
  const own = Object.entries($defs).filter(([, kind]) => kind.additionalProperties === false);
  const interfaces = own.map(([name, { description, properties, required }]) => {
    const fields = Object.entries(properties).map(([field, schema]) => {
      const isGiven = ANSWERED.has(name) || required.includes(field);
      return `${schema.description ? `  /** ${schema.description} */\n` : ""}  ${field}${isGiven ? "" : "?"}: ${typeOf(schema)};\n`;
    });
    return `/** ${description} */\nexport interface ${name} {\n${fields.join("")}}\n`;
  });
  const views = Object.entries(questions).map(([name, { view }]) => `  ${JSON.stringify(name)}: ${typeOf(view)};\n`);
  return [
    "// Written by `node types.js` from schema.json, which the server writes of itself.\n",
    ...interfaces,
    `/** The questions, and what may be said about each. */\nexport interface Views {\n${views.join("")}}\n`,
  ].join("\n");
}

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
if (process.argv[1] === here("types.js"))
  writeFileSync(here("src/explorer/api.ts"), typesOf(JSON.parse(readFileSync(here("schema.json"), "utf8"))));
