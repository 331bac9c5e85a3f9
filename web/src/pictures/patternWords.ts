// What is said of attention patterns.

import { THUMB, type Pattern } from "../pattern";
import { spoken } from "../words";

export const patternGloss = (patterns: readonly Pattern[]): string[] => [
  spoken("One picture per head: a row for every query token, a column for every key token, shaded by weight. "),
  patterns.some((p) => Math.max(p.rows, p.columns) > THUMB)
    ? spoken(
        "Every pixel is a value of this forward pass; where tokens outnumber pixels, a pixel shows the largest weight under it. ",
      )
    : spoken("Every pixel is a value of this forward pass. "),
  spoken("Choose a picture to see it large, with its numbers."),
];

export const headOf = (p: Pattern): string =>
  spoken(p.part === "cross" ? "Layer {layer}, head {head} of cross-attention" : "Layer {layer}, head {head}", {
    layer: p.layer,
    head: p.head,
  });
