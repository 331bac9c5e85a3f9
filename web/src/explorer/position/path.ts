// The path of a token as arrows: one after another, each from where the one before ended.

import type { Arrow } from "../../drawing/cloud";
import type { Place } from "../../drawing/turning";
import type { Tensor } from "../../tensor";
import { spokenLabel } from "../../words";

/** The rows of an array with two axes. */
export const rowsOf = (tensor: Tensor): readonly Place[] =>
  Array.from({ length: tensor.shape[0] }, (_, row) =>
    Array.from({ length: tensor.shape[1] }, (_, column) => tensor.at(row, column) ?? NaN),
  );

export const plus = (one: Place, other: Place): Place => one.map((x, axis) => x + other[axis]);

/** What wrote: a head, named by its layer and its number; an MLP or another part; the embedding and constants. */
const kindOf = (name: string): Arrow["kind"] =>
  /[HX]\d+$/.test(name) ? "full" : /mlp/.test(name) ? "dashed" : "faint";

/** Arrows from the place of zero on, in the order of the forward pass. */
export function pathOf(zero: Tensor, writes: Tensor): readonly Arrow[] {
  let from: Place = Array.from(zero.values);
  return rowsOf(writes).map((write, i) => {
    const name = String(writes.labels(writes.axes[0])[i]);
    const arrow = { from, to: plus(from, write), name: spokenLabel(name), kind: kindOf(name) };
    from = arrow.to;
    return arrow;
  });
}
