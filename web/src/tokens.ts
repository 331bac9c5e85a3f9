// Tokens as they are shown: white space and control characters get a visible mark.

const MARKS: Readonly<Record<string, string>> = { " ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥" };
const UNSEEN = /[\p{C}\p{Z}]/u; // controls, formats (such as the ones that turn the direction of text), other spaces

/** The mark that stands for a character which cannot be seen; null for one that can. */
export function marked(character: string): string | null {
  if (MARKS[character] || !UNSEEN.test(character)) return MARKS[character] ?? null;
  return `⟨${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

export const visible = (text: string): string => (text === "" ? "∅" : [...text].map((c) => marked(c) ?? c).join(""));

/** A text whose spaces stay spaces; what else cannot be seen is marked. */
export const readable = (text: string | number): string =>
  [...String(text)].map((c) => (c === " " ? c : (marked(c) ?? c))).join("");

export function shortened(text: string, most: number): string {
  const characters = [...visible(text)];
  return characters.length <= most ? characters.join("") : `${characters.slice(0, most - 1).join("")}…`;
}

/** A token's text in stretches that are seen as they are, and marks. */
export function stretches(text: string): { text: string; isMark: boolean }[] {
  const found: { text: string; isMark: boolean }[] = text === "" ? [{ text: "∅", isMark: true }] : [];
  for (const character of text) {
    const mark = marked(character);
    const last = found.at(-1);
    if (mark !== null) found.push({ text: mark, isMark: true });
    else if (last && !last.isMark) last.text += character;
    else found.push({ text: character, isMark: false });
  }
  return found;
}

/** What is odd about a token: a word the model does not know, or one byte of a character. */
export interface Mark {
  index: number;
  unknown?: boolean;
  character?: string;
  part?: number;
}

/** A text as its tokens, with what is odd about some. */
export interface Text {
  tokens: readonly string[];
  odd: ReadonlyMap<number, Mark>;
}

export const textOf = (tokens: readonly string[], marks: readonly Mark[] = []): Text => ({
  tokens,
  odd: new Map(marks.map((mark) => [mark.index, mark])),
});

const WHOLE = 120,
  TELLING = 8,
  AROUND = 4;

/** Of a long text, the places around those of the largest weights; null for a short one, all of which is shown. */
export function tellingPlaces(
  { tokens, odd }: Text,
  weights: readonly number[],
  here: number | null,
): Set<number> | null {
  if (tokens.length <= WHOLE) return null;
  const largest = [...weights.keys()].sort((i, j) => Math.abs(weights[j]) - Math.abs(weights[i])).slice(0, TELLING);
  const places = new Set<number>();
  for (const i of here === null ? largest : [...largest, here]) {
    let [first, last] = [Math.max(0, i - AROUND), Math.min(tokens.length - 1, i + AROUND)];
    while ((odd.get(first)?.part ?? 0) > 0) first--; // no part of a character without the others
    while ((odd.get(last + 1)?.part ?? 0) > 0) last++;
    for (let at = first; at <= last; at++) places.add(at);
  }
  return places;
}
