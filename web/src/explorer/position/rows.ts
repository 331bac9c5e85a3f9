// The rows of all heads at one query, as one map for each text that is looked at.

import { Tensor, type Label } from "../../tensor";
import type { Answer } from "../transport";

/** A line of a map: which array of the answer it stands in, and where. */
export interface Origin {
  array: string;
  /** Of each axis but the keys. */
  index: readonly number[];
  label: string;
}

export interface Barcode {
  map: Tensor;
  lines: readonly Origin[];
  crosses: boolean;
}

/** Maps of `head key`, the last layer at the top; heads of several streams have a line for each. */
export function barcodes({ arrays }: Answer, crosses: (array: string) => boolean): Barcode[] {
  const found: Barcode[] = [];
  for (const isCross of [false, true]) {
    const paths = Object.keys(arrays)
      .filter((path) => crosses(path) === isCross)
      .reverse();
    if (!paths.length) continue;
    const keys = arrays[paths[0]].labels("key");
    const lines: Origin[] = [];
    const values: number[] = [];
    for (const path of paths) {
      const tensor = arrays[path];
      const [headAt, keyAt] = [tensor.axes.indexOf("head"), tensor.axes.indexOf("key")];
      const outer = tensor.shape.map((n, d) => (d === keyAt ? 1 : n));
      const every = outer.reduce((a, b) => a * b, 1);
      const places = Array.from({ length: every }, (_, flat) =>
        outer.map((n, d) => Math.floor(flat / outer.slice(d + 1).reduce((a, b) => a * b, 1)) % n),
      );
      places.sort((a, b) => a[headAt] - b[headAt]);
      for (const place of places) {
        const streams = place.filter((_, d) => d !== headAt && d !== keyAt);
        const label = String(tensor.labels("head")[place[headAt]]);
        lines.push({ array: path, index: place, label: [label, ...streams].join("/") });
        for (let key = 0; key < keys.length; key++) values.push(tensor.at(...place.with(keyAt, key)) ?? NaN);
      }
    }
    const map = new Tensor({
      axes: ["head", "key"],
      coords: { head: lines.map((line) => line.label as Label), key: keys },
      shape: [lines.length, keys.length],
      values: Float32Array.from(values),
    });
    found.push({ map, lines, crosses: isCross });
  }
  return found;
}
