// Rows of patterns as mixtures of tokens: a bar cut by weights.

import type { Tensor } from "../../tensor";

/** One row of a pattern: of a head, or of one of its maps. */
export interface Row {
  head: string;
  /** The head, with the number of the map if it has several. */
  label: string;
  /** Its place in `weights` without the keys, and so in `sums`. */
  index: readonly number[];
  weights: readonly (number | null)[];
}

/** Part of a bar: a token, or all that are too small to be told apart, whose key is null. */
export interface Part {
  key: number | null;
  weight: number | null;
  /** Of the sizes of all weights. */
  share: number;
  /** Of the weights up to here, the largest first. */
  sum: number;
}

const LEAST = 0.004; // of a bar: what is smaller is one part together

/** The rows of an array `… head key` whose last axis is keys. */
export function rowsOfHeads(weights: Tensor): Row[] {
  const outer = weights.shape.slice(0, -1);
  const keys = weights.shape.at(-1)!;
  const headAt = weights.axes.indexOf("head");
  const heads = weights.labels("head");
  const rows = Array.from({ length: outer.reduce((a, b) => a * b, 1) }, (_, flat): Row => {
    const index = outer.map((n, d) => Math.floor(flat / outer.slice(d + 1).reduce((a, b) => a * b, 1)) % n);
    const head = String(heads[index[headAt]]);
    const maps = index.filter((_, d) => d !== headAt);
    return {
      head,
      label: [head, ...maps].join("/"),
      index,
      weights: Array.from({ length: keys }, (_, key) => weights.at(...index, key)),
    };
  });
  return rows.sort((one, other) => one.index[headAt] - other.index[headAt]);
}

/** The tokens of a row, the largest weight first; those beyond `most`, and those too small to see, together. */
export function mixtureOf(weights: readonly (number | null)[], most = 24): Part[] {
  const known = weights.flatMap((weight, key) => (weight === null ? [] : [{ key, weight }]));
  const total = known.reduce((sum, { weight }) => sum + Math.abs(weight), 0) || 1;
  known.sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
  let sum = 0;
  const parts: Part[] = known.map(({ key, weight }) => {
    sum += weight;
    return { key, weight, share: Math.abs(weight) / total, sum };
  });
  if (most === Infinity) return parts;
  const shown = parts.filter(({ share }, i) => i < most && share >= LEAST);
  const rest = parts.slice(shown.length).reduce((all, { share }) => all + share, 0);
  return rest > 0 ? [...shown, { key: null, weight: null, share: rest, sum }] : shown;
}

/** A sum with four digits behind the point. */
export const sumText = (sum: number): string => `${sum < 0 ? "−" : ""}${Math.abs(sum).toFixed(4)}`;
