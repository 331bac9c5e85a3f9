// What is explained at one position: which logit, and from which place.

import type { Likeliest, RunCard } from "../api";
import { headAt, type Looking } from "../looking";

/** The position that is looked from, of the text whose tokens have logits. */
export function positionOf({ model, cursor, shown }: Pick<Looking, "model" | "cursor" | "shown">): number {
  const last = shown.tokens.length - 1;
  return headAt(model, cursor)?.layer.stack === "encoder" ? last : Math.min(cursor.query, last);
}

/** The likeliest answers there: those of A, so that A and B are asked about one logit; of B if A is shorter. */
export const likeliestAt = ({ a, shown }: { a: RunCard; shown: RunCard }, position: number): Likeliest | undefined =>
  a.top[position] ?? shown.top[position];

/** What questions about the logit say of it. */
export function aimOf(looking: Looking): { answer: number | null; against: number | null; position: number } {
  const position = positionOf(looking);
  return {
    answer: looking.aim.answer ?? likeliestAt(looking, position)?.ids[0] ?? null,
    against: looking.aim.against,
    position,
  };
}

/** The names of answers, as far as the runs have said them. */
export function namesOf({ model, a, b }: Pick<Looking, "model" | "a" | "b">): Map<number, string> {
  const areTokens = !model.logits_of?.endsWith("_class");
  const found = new Map<number, string>();
  for (const run of [a, b]) {
    for (const { ids, texts } of run?.top ?? []) ids.forEach((id, i) => found.set(id, texts[i]));
    for (const { id, text } of (areTokens && run?.tokens) || []) if (id !== null && !found.has(id)) found.set(id, text);
  }
  return found;
}
