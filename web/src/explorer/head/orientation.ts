// Which way a pattern reads, and which part of it is masked, in words.

import { spoken } from "../../words";
import type { MixerCard } from "../api";
import type { Stage } from "../words";

export const readWords = (isTurned: boolean): string =>
  isTurned
    ? spoken("Rows are keys, columns queries: down a column stands what one token looks at.")
    : spoken("Rows are queries, columns keys: along a row stands what one token looks at.");

/** What no query of a layer may look at, at a stage of its pattern. */
export function maskedWords(
  { support, window, crosses }: Pick<MixerCard, "support" | "window" | "crosses">,
  stage: Stage,
  isTurned: boolean,
): string {
  if (stage === "products") return spoken("Nothing is masked yet.");
  if (support === "full" && window === null)
    return crosses
      ? spoken("Nothing is masked: every token looks at the whole text that is read.")
      : spoken("Nothing is masked: every token looks both ways.");
  const words =
    support === "full"
      ? ""
      : isTurned
        ? spoken("The lower left triangle is masked: keys behind their query.")
        : spoken("The upper right triangle is masked: keys behind their query.");
  const far = window === null ? "" : spoken("Of keys beyond a window of {n} few are seen, or none.", { n: window });
  return [words, far].filter(Boolean).join(" ");
}
