import { expect, test } from "vitest";

import type { TokenCard } from "../src/explorer/api";
import { repeated, TITLES, type Lesson } from "../src/explorer/learn/lesson";
import { sentencesOf } from "../src/explorer/learn/sentences";
import { flat, type Piece } from "../src/words";

const token = (text: string): TokenCard => ({ id: 0, text, bytes: "", span: null, unknown: false });
const run = { tokens: ["a", "b", "c", "d"].map(token), source_tokens: [] };
const CLAIMS: readonly (readonly string[])[] = [
  ["is_text", "adds", "has_bytes", "repeats"],
  ["adds_positions", "repeats", "same"],
  ["has_products", "has_scores", "has_weights", "is_mass", "is_scaled", "by_softmax"],
  ["some_add", "some_take"],
  ["has_mlps", "has_neurons", "has_norm", "norms_stream"],
  ["repeats", "induces", "has_lower", "previous", "composes", "reads", "is_mass"],
  ["is_likeliest"],
  ["adds", "stays", "falls", "as_said", "more"],
];

/** A chapter in which some claims hold, each number being its place among the names that were asked for. */
function lesson(chapter: number, holding: ReadonlySet<string>): Lesson {
  const asked = <T>(value: T) => new Proxy({}, { get: () => value }) as Readonly<Record<string, T>>;
  return {
    chapter,
    where: { head: "L1H6", query: 1, key: 0 },
    numbers: asked(1),
    tokens: asked("word"),
    heads: asked("L1H6"),
    words: { positions: [{ kind: "rope", layers: [0] }], mechanism: "softmax", norm: "rms_norm" },
    claims: Object.fromEntries(CLAIMS[chapter - 1].map((claim) => [claim, holding.has(claim)])),
    formula: [],
  };
}

const reading = (piece: Piece): string =>
  flat(piece)
    .map((one) => (typeof one === "string" ? one : "token" in one ? one.token : reading(one.words)))
    .join("");

test("each chapter has three sentences, whichever claims hold, and every claim changes what is said", () => {
  expect(TITLES.length).toBe(CLAIMS.length);
  CLAIMS.forEach((claims, i) => {
    const said = new Map<string, string>();
    for (let bits = 0; bits < 2 ** claims.length; bits++) {
      const holding = new Set(claims.filter((_, c) => bits & (1 << c)));
      const sentences = sentencesOf(lesson(i + 1, holding), run).map(reading);
      expect(sentences.length).toBe(3);
      for (const sentence of sentences) {
        expect(sentence).toMatch(/^[\p{Lu}\da-z].*\.$/u);
        expect(sentence).not.toMatch(/[{}]|undefined|NaN|null/);
      }
      said.set([...holding].sort().join(), sentences.join(" "));
    }
    for (const claim of claims) {
      const differs = [...said].some(([holding, words]) => {
        const others = holding.split(",").filter((one) => one && one !== claim);
        return holding.split(",").includes(claim) && said.get(others.sort().join()) !== words;
      });
      expect(differs, `${claim} of chapter ${i + 1}`).toBe(true);
    }
  });
});

test("a text is repeated as often as there is room for, behind what it is made of", () => {
  const card = { max_len: 100 };
  expect(repeated({ model: "m", text: "a b" }, card, 4)).toEqual({ model: "m", text: "a b a b" });
  expect(repeated({ model: "m", text: "a\n" }, card, 4)).toEqual({ model: "m", text: "a\na\n" });
  expect(repeated({ model: "m", ids: [1, 2, 3], changes: [] }, card, 3)).toEqual({
    model: "m",
    ids: [1, 2, 3, 1, 2, 3],
  });
  const long = repeated({ model: "m", ids: Array.from({ length: 90 }, (_, i) => i) }, card, 90);
  expect(long.ids!.length).toBeLessThan(100);
  expect(repeated({ model: "m", text: "word ".repeat(90) }, card, 90).text!.length).toBeLessThan(500);
});
