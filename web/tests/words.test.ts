import { expect, test } from "vitest";

import { Glossary } from "../src/glossary";
import { stretches, tellingPlaces, textOf, visible } from "../src/tokens";
import { chip, flat, spoken } from "../src/words";

test("words are said in the page's language with what stands in their slots, and in English where it lacks them", () => {
  expect(spoken("layer {layer}", { layer: 3 })).toBe("第 3 层");
  expect(spoken("{n} of {all}", { n: 1, all: "{n}" })).toBe("1 of {n}");
});

test("a token in a slot stays a token, whatever its text is", () => {
  const token = chip("{n}<b>");
  expect(spoken("{token} at {n}", { token, n: 4 })).toEqual(["", token, " at ", 4, ""]);
  expect(flat(spoken("{token} at {n}", { token, n: 4 }))).toEqual([token, " at ", "4"]);
});

test("every character of a token is seen, as itself or as a mark", () => {
  const text = " a\n\tb\u202e ";
  expect(
    stretches(text)
      .map((part) => part.text)
      .join(""),
  ).toBe(visible(text));
  expect(
    stretches(text)
      .filter((part) => !part.isMark)
      .map((part) => part.text),
  ).toEqual(["a", "b"]);
  expect(visible("")).toBe("∅");
});

test("what tells of a long text is around its largest weights, and never part of a character alone", () => {
  const marks = [12, 13, 14].map((index, part) => ({ index, part, character: "我" }));
  const text = textOf(Array(200).fill("a"), marks);
  const weights = text.tokens.map((_, i) => (i >= 18 && i < 26 ? 1 : 0));
  const places = [...tellingPlaces(text, weights, null)!].sort((a, b) => a - b);
  expect(places).toEqual(Array.from({ length: 18 }, (_, i) => 12 + i));
  expect(tellingPlaces(textOf(["a", "b"]), [0, 1], null)).toBeNull();
});

test("a term is linked where it stands first, the longest that fits, and the list holds what was used", () => {
  const glossary = new Glossary(
    [["head", "One."]],
    [
      ["attention head", "Two."],
      ["never", "Three."],
    ],
  );
  const linked = flat(glossary.linked("A head, an attention head, a head and an Attention head."));
  expect(linked.filter((piece) => typeof piece === "object").map((piece) => "words" in piece && piece.words)).toEqual([
    "head",
    "attention head",
  ]);
  expect(glossary.list().map((entry) => entry.name)).toEqual(["head", "attention head"]);
});
