// Words in the language of the page, and pieces of a line: words, and nodes among them as data, which `Words.svelte`
// draws. Nothing here makes markup of a text: it only ever becomes a text node.

/** English words and what they are in the page's language; empty on an English page. It stands before the script. */
declare const DICTIONARY: ReadonlyMap<string, string>;

/** An element within a line: `words` inside of `tag`. */
export interface Inline {
  tag: "span" | "strong" | "code" | "a" | "button";
  words: Piece;
  class?: string;
  href?: string;
  title?: string;
  onclick?: () => void;
}

/** A token, with marks for what cannot be seen. */
export interface TokenPiece {
  token: string;
  class?: string;
}

export type Piece = string | number | null | undefined | false | Inline | TokenPiece | readonly Piece[];

export const number = (text: string | number): Inline => ({ tag: "span", class: "number", words: text });
export const strong = (words: Piece, kind?: string): Inline => ({ tag: "strong", class: kind, words });
export const soft = (words: Piece): Inline => ({ tag: "span", class: "soft", words });
export const mono = (words: Piece): Inline => ({ tag: "span", class: "mono", words });
export const code = (words: string): Inline => ({ tag: "code", words });
export const chip = (text: string): TokenPiece => ({ token: text, class: "chip" });

/** English words with a slot in braces for each value, said; with a node among the values, as a piece. */
export function spoken(
  english: string,
  values?: Readonly<Record<string, unknown>> & { [slot: string]: string | number | boolean | null | undefined },
): string;
export function spoken(english: string, values: Readonly<Record<string, Piece>>): Piece;
export function spoken(english: string, values?: Readonly<Record<string, unknown>>): Piece {
  const said = DICTIONARY.get(english) ?? english;
  if (!values) return said;
  const parts = said.split(/\{(\w+)\}/).map((part, i) => (i % 2 ? (values[part] as Piece) : part));
  return parts.some((part) => typeof part === "object" && part !== null) ? parts : parts.join("");
}

/** Parts with a comma between each two. */
export const listed = (parts: readonly Piece[]): Piece =>
  parts.flatMap((part, i) => (i ? [spoken(", "), part] : [part]));

/** The pieces of a line in one list, without what is nothing. */
export function flat(words: Piece): (string | Inline | TokenPiece)[] {
  if (Array.isArray(words)) return words.flatMap(flat);
  if (words === null || words === undefined || words === false || words === "") return [];
  return [typeof words === "number" ? String(words) : (words as string | Inline | TokenPiece)];
}

/** Words with `code` in backticks. */
export const inCode = (words: string): Piece => words.split("`").map((part, i) => (i % 2 ? code(part) : part));

export const capitalised = (words: string): string => words.charAt(0).toUpperCase() + words.slice(1);

export function cut(text: string, most: number): string {
  const characters = [...text];
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join("")}…`;
}

// the names of components and of places in the model are said word by word
const LABELS = new Map(
  Object.entries({
    enc: spoken("enc"),
    embed: spoken("embed"),
    block: spoken("block"),
    token: spoken("token"),
    position: spoken("position"),
    attn: spoken("attn"),
    cross: spoken("cross"),
    mlp: spoken("mlp"),
    "norm bias": spoken("norm bias"),
    bias: spoken("bias"),
    final: spoken("final"),
    readout: spoken("readout"),
    unembed: spoken("unembed"),
  }),
);

/** The name of a component or of a place in the model. */
export const spokenLabel = (label: string | number): string =>
  String(label).replace(/norm bias|\b[a-z]+\b/g, (word) => LABELS.get(word) ?? word);
