// Where a number on the page comes from, as what the inspector shows.

import type { Source } from "./looking";
import type { Answer } from "./transport";

/** A number with every digit that float32 has, or with fewer. */
export function exact(value: number, significant = 8): string {
  const digits = Number(value.toPrecision(significant));
  const text = digits !== 0 && Math.abs(digits) < 1e-4 ? digits.toExponential() : String(digits);
  return text.replaceAll("-", "−");
}

/** The source of one entry of an array of an answer. */
export function sourceOf(
  answer: Answer,
  array: string,
  index: readonly number[],
  name: string,
  sites: readonly string[] = [],
): Source {
  const tensor = answer.arrays[array];
  const place = tensor.axes.map((axis, i) => tensor.labels(axis)[index[i]]);
  return {
    name,
    value: tensor.at(...index),
    array: `found[${JSON.stringify(array)}]`,
    axes: tensor.axes,
    shape: tensor.shape,
    index: place,
    encoding: answer.sent[array].encoding,
    python: answer.python,
    sites,
  };
}
