// Mixtures of tokens in words.

import { number, chip, soft, spoken, type Piece } from "../words";
import { percent, signed } from "../numbers";
import type { Text } from "../tokens";

/** The largest entries of a mixture, and what is left over; `rest: false` where a sum means nothing. */
export function inWords(
  { tokens }: Text,
  weights: readonly number[],
  { isSigned = false, most = 4, rest: summed = true } = {},
): Piece {
  const order = [...weights.keys()].sort((i, j) => Math.abs(weights[j]) - Math.abs(weights[i])).slice(0, most);
  const named = order.filter((i) => Math.abs(weights[i]) >= 0.005);
  const rest = weights.reduce((sum, w) => sum + w, 0) - named.reduce((sum, i) => sum + weights[i], 0);
  const value = (w: number) => number(isSigned ? signed(w, 3) : percent(w));
  const parts = named.map((i, n): Piece => [
    chip(tokens[i]),
    " ",
    soft(spoken("at {place} ", { place: i })),
    value(weights[i]),
    summed || n < named.length - 1 ? spoken(", ") : spoken("."),
  ]);
  if (!summed) return parts;
  return [
    parts,
    spoken("{n} others ", { n: weights.length - named.length }),
    value(Math.max(isSigned ? rest : 0, rest)),
    spoken("."),
  ];
}
