// Builds the scripts and the style sheets that pages carry, into the folder that is named: for each kind of page one script,
// whose `page.open` draws it, and the English texts that it says, which are looked up in the table of the page's language.
// A cell of a notebook is drawn by the same scripts, and `widget.js` beside them.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { build } from "vite";

const root = fileURLToPath(new URL(".", import.meta.url));
const [out] = process.argv.slice(2);

/** Collect the texts that the modules of a bundle say: what may be the first argument of `spoken`. */
function saidIn(found) {
  const literals = (node) => {
    if (node.type === "Literal" && typeof node.value === "string") found.add(node.value);
    else if (node.type === "ConditionalExpression") [node.consequent, node.alternate].forEach(literals);
  };
  const walk = (node) => {
    if (Array.isArray(node)) return node.forEach(walk);
    if (node === null || typeof node !== "object") return;
    if (
      node.type === "CallExpression" &&
      node.callee.type === "Identifier" &&
      node.callee.name === "spoken" &&
      node.arguments[0]
    )
      literals(node.arguments[0]);
    Object.values(node).forEach(walk);
  };
  return {
    name: "said",
    enforce: "post",
    transform(code, id) {
      if (!id.includes("node_modules")) walk(this.parse(code));
    },
  };
}

/** Escape what would end a script element, or begin a comment in it. Both stand in strings alone. */
const embeddable = (script) => script.replaceAll("<!--", "\\x3C!--").replaceAll(/<(\/?script)/gi, "\\x3C$1");

/** The licences of the packages that modules of a bundle come from. */
function licencesOf(modules) {
  const packages = new Set(
    Object.keys(modules).flatMap((id) => /.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id)?.[0] ?? []),
  );
  return [...packages].map((folder) => {
    const { name, version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
    return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
}

/** Bundle a module and what it imports; a script has what it exports under a name. */
async function bundled(input, output, said = new Set()) {
  const { output: found } = await build({
    root,
    configFile: false,
    logLevel: "warn",
    mode: "production",
    plugins: [svelte({ configFile: false }), saidIn(said)],
    build: {
      write: false,
      target: "es2023",
      modulePreload: false,
      rolldownOptions: { input, output, preserveEntrySignatures: "strict" },
    },
  });
  return found;
}

mkdirSync(out, { recursive: true });
const words = {};
const licences = new Set();
const pages = readdirSync(join(root, "src", "pages")).sort();
for (const [file, name] of [
  ...pages.map((page) => [join("pages", page), "page"]),
  ["notebook/widget.ts", "notebook"],
]) {
  const [kind, said] = [basename(file, ".ts"), new Set()];
  const [chunk] = await bundled(join(root, "src", file), { format: "iife", name }, said);
  writeFileSync(join(out, `${kind}.js`), embeddable(chunk.code));
  words[kind] = [...said].filter((text) => text !== "").sort();
  for (const licence of licencesOf(chunk.modules)) licences.add(licence);
}
for (const name of ["page.css", "explorer.css"]) {
  const [sheet] = await bundled(join(root, "src", name), { format: "es" });
  writeFileSync(join(out, name), sheet.source);
}
writeFileSync(join(out, "words.json"), `${JSON.stringify(words, null, 1)}\n`);
writeFileSync(join(out, "licences.txt"), [...licences].sort().join("\n---\n\n"));
