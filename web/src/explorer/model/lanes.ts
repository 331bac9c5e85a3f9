// The stream as lanes: which of them are seen, where writes and links lie on them.

import type { Tensor } from "../../tensor";

/** The lanes that are seen: so many around one, or all. */
export function laneWindow(n: number, seen: number, at: number): { first: number; last: number } {
  const first = Math.max(0, Math.min(n - seen, at - Math.floor(0.7 * seen)));
  return { first, last: Math.min(n, first + seen) };
}

/** What a head moves from one position to another. */
export interface Link {
  head: string;
  layer: number;
  path: string;
  key: number;
  weight: number;
  /** Of the sizes of all weights of its row: the weight itself where these sum to one. */
  share: number;
  /** Where the weight stands in the array of its layer. */
  index: readonly number[];
}

/** The largest weights of every head at one query, of at least such a share of their row, `most` of each; the largest first. */
export function linksOf(
  rows: Readonly<Record<string, Tensor>>,
  layerOf: (path: string) => number | undefined,
  least: number,
  most: number,
): Link[] {
  const found: Link[] = [];
  for (const [path, tensor] of Object.entries(rows)) {
    const layer = layerOf(path);
    if (layer === undefined) continue;
    const [headAt, keyAt] = [tensor.axes.indexOf("head"), tensor.axes.indexOf("key")];
    const heads = tensor.labels("head");
    const keys = tensor.shape[keyAt];
    const byHead = heads.map(() => [] as Link[]);
    // keys are the last axis
    for (let row = 0; row < tensor.values.length; row += keys) {
      const weights = tensor.values.subarray(row, row + keys);
      const total = weights.reduce((sum, weight) => sum + (Math.abs(weight) || 0), 0);
      const place = placeOf(row, tensor.shape);
      weights.forEach((weight, key) => {
        const share = Math.abs(weight) / total;
        if (!(share >= least)) return;
        const index = place.with(keyAt, key);
        byHead[index[headAt]].push({ head: String(heads[index[headAt]]), layer, path, key, weight, share, index });
      });
    }
    for (const links of byHead) found.push(...links.sort(larger).slice(0, most));
  }
  return found.sort(larger);
}

const larger = (one: Link, other: Link) => other.share - one.share;
const placeOf = (flat: number, shape: readonly number[]): number[] =>
  shape.map((n, d) => Math.floor(flat / shape.slice(d + 1).reduce((a, b) => a * b, 1)) % n);
