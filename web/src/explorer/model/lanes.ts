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
  /** Where the weight stands in the array of its layer. */
  index: readonly number[];
}

/** The largest weights of every head at one query, of at least so much, `most` of each, the largest first. */
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
    const byHead = heads.map(() => [] as Link[]);
    for (let flat = 0; flat < tensor.values.length; flat++) {
      const weight = tensor.values[flat];
      if (!(Math.abs(weight) >= least)) continue;
      const index = tensor.shape.map(
        (n, d) => Math.floor(flat / tensor.shape.slice(d + 1).reduce((a, b) => a * b, 1)) % n,
      );
      byHead[index[headAt]].push({ head: String(heads[index[headAt]]), layer, path, key: index[keyAt], weight, index });
    }
    const larger = (one: Link, other: Link) => Math.abs(other.weight) - Math.abs(one.weight);
    for (const links of byHead) found.push(...links.sort(larger).slice(0, most));
  }
  return found.sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight));
}
